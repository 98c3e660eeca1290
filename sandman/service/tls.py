"""The server's TLS: a context from bytes, and a holder whose certificate can be changed while serving."""

from __future__ import annotations

import os
import ssl

ALPN = ["http/1.1"]


def server_context(certificate_pem: bytes, key_pem: bytes) -> ssl.SSLContext:
    """A context for TLS 1.2 and later, HTTP/1.1 only.

    Args:
        certificate_pem: the certificate and those between it and its root, in this order.
        key_pem: its private key, not encrypted. Never reaches a disk.

    Raises:
        ssl.SSLError: they are not PEM, do not belong together, or the key is encrypted.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(ALPN)
    # The ssl module reads only files; a memfd is one that lives in memory alone.
    descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(key_pem.rstrip() + b"\n" + certificate_pem)
        # Of an encrypted key OpenSSL would ask a terminal for the password, and wait: it gets an empty one.
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=b"")
    finally:
        os.close(descriptor)
    return context


class Certificate:
    """The certificate that new connections get. `replace` changes it; open connections keep theirs."""

    def __init__(self, certificate_pem: bytes, key_pem: bytes) -> None:
        self._context = server_context(certificate_pem, key_pem)

    def replace(self, certificate_pem: bytes, key_pem: bytes) -> None:
        """Serve this one from now on.

        Raises:
            ssl.SSLError: it is not sound; the old one stays.
        """
        self._context = server_context(certificate_pem, key_pem)

    def current(self) -> ssl.SSLContext:
        """The context for a new connection: what `https.serve` takes as `tls`."""
        return self._context
