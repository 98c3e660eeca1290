"""Certificates of evaluations, and the keys that verify them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandman._async.transport import Call
from sandman._core import faults
from sandman.certificates import Certificate, CertificateError, read_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandman._async.transport import Transport

PATIENCE_S = 30.0
"""Seconds for one: networks are probed, and others may be in the making."""


async def certify(
    transport: Transport, sandbox: str, path: str, exec_ids: Sequence[str]
) -> Certificate:
    """See `Sandbox.certificate`."""
    call = Call.with_json("POST", f"{path}/certificate", {"exec_ids": list(exec_ids)})
    call.sandbox = sandbox
    call.silence_s = call.patience_s = PATIENCE_S
    answer = await transport.json(call)
    try:
        return Certificate.from_json(answer)
    except CertificateError as error:
        raise faults.not_understood("a certificate", answer) from error


class Verifying:
    """What a client has to do with certificates that were made before."""

    _transport: Transport

    async def certificate_keys(self) -> dict[str, bytes]:
        """The public keys by which `sandman.certificates.verify` knows this gateway's certificates; worth being kept
        for as long as those are."""
        answer = await self._transport.json(Call("GET", "/v1/certificate-keys"))
        try:
            return read_keys(answer)
        except CertificateError as error:
            raise faults.not_understood("a set of keys", answer) from error
