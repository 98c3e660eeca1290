"""The cluster as kubectl shows it, with the rights of whoever runs the doctor."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

CALL_S = 40.0
"""Seconds for one call of kubectl: the API server itself gives up after 30."""


_LOG = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.")
"""How a line of kubectl's log begins: it tries several times, and tells of each, before it says what is wrong."""
_NOWHERE = "localhost:8080"
"""Where kubectl looks when nobody has told it of a cluster."""


def complaint(stderr: str) -> str:
    """What kubectl says is wrong, without its log where it says more than that; and the way out where it has no cluster."""
    lines = stderr.strip().splitlines()
    text = "\n".join([line for line in lines if not _LOG.match(line)] or lines)
    if _NOWHERE in text:
        return f"{text} (kubectl knows no cluster: KUBECONFIG or --context leads it to one; local mode has none)"
    return text


class ClusterError(Exception):
    """kubectl failed; the text is what it said."""


class Cluster:
    """Calls of kubectl.

    Args:
        context: of the kubeconfig; None: the current one.
    """

    def __init__(self, context: str | None = None) -> None:
        self._base = ["kubectl", *(["--context", context] if context else [])]

    def get(self, *arguments: str) -> dict[str, Any]:
        """What `kubectl get … -o json` gives.

        Raises:
            ClusterError: it failed, or there is none.
        """
        return self._json("get", *arguments, "-o", "json")

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        """The objects of a list.

        Raises:
            ClusterError: it failed.
        """
        return list(self.get(*arguments).get("items") or [])

    def raw(self, path: str) -> str:
        """What the API server, or a service through it, answers to a GET.

        Raises:
            ClusterError: it failed.
        """
        return self.run("get", "--raw", path)

    def dry_run(self, document: dict[str, Any]) -> dict[str, Any]:
        """The object as the API server would have made it.

        Raises:
            ClusterError: it would not.
        """
        arguments = ("create", "--dry-run=server", "-o", "json", "-f", "-")
        return self._json(*arguments, stdin=json.dumps(document))

    def may(self, account: str, verb: str, resource: str, *options: str) -> bool:
        """Whether an account may do something.

        Raises:
            ClusterError: whoever asks may not ask as that account.
        """
        arguments = ("auth", "can-i", verb, resource, *options, "--as", account)
        done = self._call(arguments, None)
        said = done.stdout.strip()
        if said in {"yes", "no"} or said.startswith("no "):
            return said == "yes"
        raise ClusterError(complaint(done.stderr) or "kubectl auth can-i gives no answer")

    def run(self, *arguments: str, stdin: str | None = None) -> str:
        """What kubectl prints.

        Raises:
            ClusterError: it failed.
        """
        done = self._call(arguments, stdin)
        if done.returncode:
            raise ClusterError(complaint(done.stderr) or f"kubectl ended with {done.returncode}")
        return done.stdout

    def _json(self, *arguments: str, stdin: str | None = None) -> dict[str, Any]:
        try:
            value = json.loads(self.run(*arguments, stdin=stdin))
        except ValueError as error:
            raise ClusterError(f"kubectl's answer makes no sense: {error}") from None
        if not isinstance(value, dict):
            raise ClusterError("kubectl's answer makes no sense")
        return value

    def _call(
        self, arguments: tuple[str, ...], stdin: str | None
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(  # noqa: S603 - kubectl of who runs this, with a list of words
                [*self._base, *arguments],
                input=stdin,
                capture_output=True,
                text=True,
                check=False,
                timeout=CALL_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ClusterError(f"kubectl: {error}") from None
