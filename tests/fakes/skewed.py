"""The daemon of another version: today's, with its version told otherwise and its wire as that version had it.

    python -m tests.fakes.skewed VERSION [serve …]

What is switched is the table of docs/design/20261130-version-skew.md. It is no imitation: all the rest is the daemon
itself, as a process. A checkout of an older commit would be the thing itself, but whoever unpacks a
release has no history.
"""

from __future__ import annotations

import sys

from daemon import __main__, application, state
from sandman import claims
from sandman.errors import BadRequestError

ADDED_IN_0_1 = ("used_s", "renewed_s", "idle_s")
PATHS_OF_0_1 = ("/v1/renew", "/v1/probe", "/v1/evidence")


def to_0_0() -> None:
    """Before there were leases and probes: an unknown member of a claim was refused, and nobody could renew."""
    parse, tell, routes = claims.Claim.from_json, claims.Info.to_json, application.Routes

    def from_json(body):
        if "lease" in body:
            raise BadRequestError("lease is not a field of this", field="lease")
        return parse(body)

    def to_json(info):
        return {k: v for k, v in tell(info).items() if k not in ADDED_IN_0_1}

    def without_new_paths(table, *rest):
        return routes({path: to for path, to in table.items() if path not in PATHS_OF_0_1}, *rest)

    claims.Claim.from_json = from_json
    claims.Info.to_json = to_json
    application.Routes = without_new_paths


def to_later() -> None:
    """A version that is yet to be: its answers have members that nobody knows."""
    tell = claims.Info.to_json
    claims.Info.to_json = lambda info: {**tell(info), "later": {"what": [1, None]}}


def main() -> int:
    version = sys.argv[1]
    state.__version__ = version
    if version.startswith("0.0."):
        to_0_0()
    elif not version.startswith("0.1."):
        to_later()
    return __main__.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
