"""How a patch is applied: SWE-bench's attempts, from strict to lax."""

from __future__ import annotations

LAX = "patch"
"""The one program beside git; an image need not have it."""
RUNGS: tuple[tuple[str, ...], ...] = (
    ("git", "apply", "--verbose"),
    ("git", "apply", "--verbose", "--3way"),
    ("git", "apply", "--verbose", "--reject"),
    (LAX, "--batch", "--forward", "--fuzz=5", "-p1", "-i"),
)
"""Each is followed by the patch's path."""
CLEAN = "git checkout -- . ; git clean -fd"
"""Between two attempts: one that fails may leave half of its work behind, over which all later ones would stumble."""
CHECK = ("git", "apply", "--check", "--reverse")
"""After the last: the patch may be in whole although every attempt complained."""
DIFF = (
    "git", "-c", "core.fileMode=false", "-c", "core.fsmonitor=false", "diff", "--no-ext-diff", "--no-textconv",
)  # fmt: skip
"""What changed, without running what the repository's own configuration names."""
ALREADY = "already applied"


def name_of(rung: tuple[str, ...]) -> str:
    """How an attempt is called in reports."""
    return " ".join(rung)
