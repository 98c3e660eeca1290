"""Rows that take a moment: a repository of one file, whose words are the outcome of its one test."""

from __future__ import annotations

from typing import Any

TOP = "/tmp/testbed"
START, END = ": '>>>>> Start Test Output'", ": '>>>>> End Test Output'"
RESULT = "cat result"
"""The test: it fails until the file is patched."""
GOOD = """\
--- a/result
+++ b/result
@@ -1 +1 @@
-FAILED t
+PASSED t
"""
_COMMIT = "git init -q . && git add -A && git -c user.name=a -c user.email=a@b.test commit -qm a"
SMALL: dict[str, Any] = {
    "workdir": TOP,
    "sandbox": {
        "prepare": [
            {"file": {"path": f"{TOP}/result", "content": "FAILED t\n"}},
            {"exec": {"shell": _COMMIT, "cwd": TOP}},
        ]
    },
}
"""How they are evaluated."""


def row(image: str, *script: str, name: str = "small", **changes: object) -> dict[str, Any]:
    """Such a row; `script` instead of the test alone."""
    return {
        "instance_id": name, "image": image, "log_parser": "parse_log_pytest", "patch": GOOD,
        "eval_script": "\n".join(script or (START, RESULT, END)),
        "FAIL_TO_PASS": ["t"], "PASS_TO_PASS": [],
    } | changes  # fmt: skip
