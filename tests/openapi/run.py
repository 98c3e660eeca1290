"""One gateway, and schemathesis as a program against it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.flow.local_mode import running
from tests.openapi import hooks

ROOT = Path(__file__).parents[2]
CHECKS = (
    "no_fault", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "unsupported_method", "allow_header_conformance",
)  # fmt: skip
REQUEST_S = 60
"""Seconds for one call: none of them waits for more than some tenths, but the machine may be busy."""


def fuzz(
    place: Path, *options: str, timeout_s: float, capture: bool = False
) -> subprocess.CompletedProcess[str]:
    """Start a gateway, have everything asked of it that its document says, and end it.

    Args:
        place: an empty directory.
        options: more for schemathesis.
        timeout_s: seconds for all of it.
        capture: keep what it prints.
    """
    with running(place, most=24) as one:
        ca = place / "ca.pem"
        ca.write_text(one.connection.ca)
        environ = {
            hooks.ENV_URL: one.connection.url,
            hooks.ENV_TOKEN: one.connection.token,
            hooks.ENV_CA: str(ca),
            "SCHEMATHESIS_HOOKS": hooks.__name__,
            "PYTHONPATH": str(ROOT),
        }
        command = [
            str(Path(sys.executable).with_name("st")), "run", f"{one.connection.url}/v1/openapi.json",
            f"--tls-verify={ca}", f"--header=Authorization: Bearer {one.connection.token}",
            f"--checks={','.join(CHECKS)}", f"--request-timeout={REQUEST_S}", "--continue-on-failure",
            "--no-shrink", "--no-color", *options,
        ]  # fmt: skip
        return subprocess.run(
            command, env={**os.environ, **environ}, cwd=place, text=True, check=False,
            capture_output=capture, timeout=timeout_s,
        )  # fmt: skip
