"""The tasks of `controlled`: three real ones from an image of theirs, and one whose test has a limit of time. Pure but for the image."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sandman.evaluation.parsers import PARSERS
from tests.cluster.bed import images
from tests.tasks import catalog, fetch, layer, small
from tests.tasks.rows import RealRow
from tests.tasks.small import END, SMALL, START

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tests.cluster.bed import Bed

IMAGE = images.Image(
    "tasks",
    (images.DEBIAN, images.Layer("tasks", layer.make, layer.recipe())),
    {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
)
LIMIT = 2.5
"""The test's limit: so many times what it takes in a sandbox for evaluations while the node is quiet. As its author would set it, who wants no
false alarm and has no other machine to try."""
TIMED = "limit__of-time"
PROGRAM = """\
import time
began = time.monotonic()
sum(i * i for i in range(36_000_000))
took = time.monotonic() - began
"""
_TEST = """\
python3 - <<'EOF'
{program}
good = took < {limit_s} and open("result").read().startswith("PASSED")
print(f"took {{took:.3f}} s of {limit_s}")
print("PASSED t" if good else "FAILED t")
EOF"""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all pieces of a measurement have in common: the image, what the timed test took on a quiet node, and its limit."""

    image: str
    quiet_s: tuple[float, ...]
    limit_s: float

    @classmethod
    def calibrated(cls, image: str, quiet_s: Sequence[float]) -> Setting:
        """By what was seen."""
        return cls(image, tuple(quiet_s), round(LIMIT * statistics.median(quiet_s), 2))

    def write(self, file: Path) -> None:
        """Keep it for the other pieces."""
        file.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, file: Path) -> Setting:
        """As it was kept."""
        body = json.loads(file.read_text())
        return cls(body["image"], tuple(body["quiet_s"]), body["limit_s"])


NO_STATUS = {"sqlparse": ("tests/test_regressions.py::test_issue484_comments_and_newlines",)}
"""Tests that pass although they are marked to fail: pytest's log says XPASS, which is no status of SWE-bench's."""


def published(bed: Bed) -> str:
    """The image's reference, by its content."""
    images.publish(bed, [IMAGE])
    return f"{bed.registry}/{images.PREFIX}/{IMAGE.name}:{IMAGE.key}"


def carried(names: Iterable[str], parser: str) -> list[str]:
    """Those names of tests that come out of a log as they went in: SWE-bench's parsers make one space of several, and lose those at an end."""
    return [name for name in names if PARSERS[parser](f"PASSED {name}\n") == {name: "PASSED"}]


def real(task: catalog.Task, image: str) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Its row, how it is evaluated, and how many tests the row leaves out, since a log in SWE-bench's form does not tell
    their names or their status."""
    made = RealRow(fetch.materials(task), image, layer.top_of(task))
    row = made.row()
    every = task.pass_to_pass()
    told = [name for name in every if name not in NO_STATUS.get(task.name, ())]
    kept = carried(told, str(row["log_parser"]))
    return row | {"PASS_TO_PASS": kept}, {"workdir": made.workdir}, len(every) - len(kept)


def timed(setting: Setting) -> tuple[dict[str, Any], dict[str, Any], int]:
    """The one with the limit."""
    test = _TEST.format(program=PROGRAM.rstrip(), limit_s=setting.limit_s)
    return small.row(setting.image, START, test, END, name=TIMED), SMALL, 0


def rows(setting: Setting) -> list[tuple[dict[str, Any], dict[str, Any], int]]:
    """All: row, how it is evaluated, tests left out."""
    return [*(real(task, setting.image) for task in catalog.TASKS), timed(setting)]
