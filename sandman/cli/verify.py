"""`sandman verify`: whether certificates of evaluations are what a gateway has signed, without asking one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sandman import certificates
from sandman.certificates import CertificateError, CertificateMalformedError
from sandman.cli.guard import EXIT_HERE
from sandman.cli.table import show

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sandman.cli.session import Session

COLUMNS = ("file", "sandbox", "issued_at", "signature", "verdict", "reasons")
GOOD, NONE = "good", "none"


ABSENT = object()
"""In the place of a certificate that a record has not: nobody can be blamed for it, and nothing is proven."""


@click.command()
@click.argument("files", nargs=-1, metavar="FILE…", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "--keys", "keys_file", metavar="FILE", type=click.Path(exists=True, dir_okay=False),
    help="Public keys that were saved; nothing is asked of a gateway then.",
)  # fmt: skip
@click.option("--save-keys", "saved", metavar="FILE", help="Write the gateway's public keys there.")
@click.option("--controlled", is_flag=True, help="Fail, too, where one was not under control.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON array.")
@click.pass_obj
def verify(
    session: Session,
    files: tuple[str, ...],
    keys_file: str | None,
    saved: str | None,
    *,
    controlled: bool,
    as_json: bool,
) -> None:
    """Verify certificates. Each FILE holds one, or lines of JSON that are certificates or have one as `certificate`.

    Exit code 1: one is not what was signed, there is none at all, or, with --controlled, something was not under control
    or has no certificate.

    Example: sandman verify --save-keys keys.json; sandman verify --keys keys.json report.jsonl
    """
    if not files and saved is None:
        raise click.UsageError("name a FILE, or --save-keys")
    keys = _keys(session, keys_file)
    if saved is not None:
        Path(saved).write_text(json.dumps(certificates.keys_to_json(keys.values())) + "\n")
        session.say(f"{len(keys)} keys are in {saved}")
    rows = [_row(name, envelope, keys) for name in files for envelope in _envelopes(name)]
    if as_json:
        click.echo(json.dumps(rows))
    elif files:
        show(COLUMNS, [{**row, "reasons": " · ".join(row["reasons"])} for row in rows])
    # Of records that have none nobody can be blamed; a file in which nothing is proven is no success.
    is_proven = not files or any(row["signature"] == GOOD for row in rows)
    is_good = is_proven and all(row["signature"] in (GOOD, NONE) for row in rows)
    is_controlled = all(row["verdict"] == certificates.CONTROLLED for row in rows)
    if not is_good or (controlled and not is_controlled):
        raise click.exceptions.Exit(EXIT_HERE)


def _keys(session: Session, keys_file: str | None) -> Mapping[str, bytes]:
    if keys_file is None:
        with session.client() as client:
            return client.certificate_keys()
    try:
        return certificates.read_keys_text(Path(keys_file).read_bytes())
    except CertificateError as error:
        raise click.ClickException(f"{keys_file}: {error}") from None


def _envelopes(name: str) -> Iterator[object]:
    """All that are in a file; what cannot be read is told as a row like any other."""
    text = Path(name).read_bytes()
    for line in [text] if _is_json(text) else text.splitlines():
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        is_record = isinstance(found, dict) and "certificate" in found
        envelope = found["certificate"] if is_record else found
        yield ABSENT if is_record and envelope is None else envelope


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _row(name: str, envelope: object, keys: Mapping[str, bytes]) -> dict[str, Any]:
    row: dict[str, Any] = {"file": name, "sandbox": None, "issued_at": None, "verdict": None}
    if envelope is ABSENT:
        return {**row, "signature": NONE, "reasons": ["the record has no certificate"]}
    try:
        found = certificates.verify(envelope, keys)
    except certificates.VerifierMissingError as error:
        raise click.ClickException(str(error)) from None
    except CertificateMalformedError as error:
        return {**row, "signature": "malformed", "reasons": [str(error)]}
    except CertificateError as error:
        kind = type(error).__name__.removeprefix("Certificate").removesuffix("Error").lower()
        return {**row, "signature": f"not verified: {kind}", "reasons": [str(error)]}
    return {
        **row,
        "sandbox": found.sandbox,
        "issued_at": found.issued_at,
        "signature": GOOD,
        "verdict": found.verdict,
        "reasons": [str(one) for one in found.reasons],
    }
