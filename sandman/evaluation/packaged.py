"""A program: grades by SWE-bench's own package, of whichever Python runs it. By its path, for that Python need not have Sandman.

A line of JSON for each log on standard input, `{row, patch, log}`; for each a line on standard output, `{version, report}` or `{error}`.
In a process of its own: a log is written by code that nobody vouches for, and an expression of a parser that takes hours on it must
be something that can be ended.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

HARNESS = "swebench.harness"


def grading() -> tuple[Any, Any]:
    """The package's modules for grading, and its type of a task.

    Its `harness` imports docker, datasets and modal when it is imported, for seconds, and grading needs none of them: in its place comes an
    empty module with its path. Where a version is built otherwise, it is imported as it is.
    """
    package = importlib.import_module("swebench")
    hollow = types.ModuleType(HARNESS)
    hollow.__path__ = [str(Path(place) / "harness") for place in package.__path__]
    sys.modules[HARNESS] = hollow
    try:
        return modules()
    except ImportError as first:
        for name in [name for name in sys.modules if name.startswith(HARNESS)]:
            del sys.modules[name]
        try:
            return modules()
        except ImportError:
            raise first from None


def modules() -> tuple[Any, Any]:
    """Import them."""
    found = importlib.import_module(f"{HARNESS}.grading")
    return found, importlib.import_module("swebench.types").TestSpec


def graded(row: dict[str, Any], patch: str, log: str) -> dict[str, Any]:
    """The package's report on one log."""
    module, specification = grading()
    task = specification(
        instance_id=row["instance_id"],
        image=row["image"],
        eval_script_list=row["eval_script"].split("\n"),
        repo=row["repo"],
        version=row["version"],
        FAIL_TO_PASS=row["FAIL_TO_PASS"],
        PASS_TO_PASS=row["PASS_TO_PASS"],
        log_parser=row["log_parser"],
        eval_type=row["eval_type"],
    )
    prediction = {"instance_id": row["instance_id"], "model_patch": patch}
    with tempfile.TemporaryDirectory() as scratch:
        # It reads strictly, in whatever encoding its locale has.
        whole = Path(scratch) / "test_output.txt"
        encoding = "utf-8" if sys.flags.utf8_mode else None
        text = Path(log).read_bytes().decode("utf-8", "replace")
        with whole.open("w", encoding=encoding, errors="replace", newline="") as file:
            file.write(text)
        report = module.get_eval_report(task, prediction, str(whole), include_tests_status=True)
    return dict(report[row["instance_id"]])


def main() -> None:
    """Answer line by line."""
    version = importlib.import_module("swebench").__version__
    for line in sys.stdin:
        told = json.loads(line)
        try:
            answer = {"version": version, "report": graded(told["row"], told["patch"], told["log"])}
        except Exception as error:  # noqa: BLE001 - any fault of the package is told
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    here = str(Path(__file__).resolve().parent)
    # What lies beside this program has names that others may have.
    sys.path[:] = [place for place in sys.path if str(Path(place or ".").resolve()) != here]
    main()
