"""What is done already, on disk: a line of JSON for each evaluation, appended and synced, so that a run can be taken up again."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from typing import TYPE_CHECKING, Any, Self

from sandman.evaluation.inputs import TaskListError
from sandman.evaluation.records import EvaluationKey, EvaluationRecord

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

NAME = "journal.jsonl"
FORMAT = 1


class Journal:
    """The journal of one directory; a block, in which nobody else has it.

    Args:
        directory: is there.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        self.records: dict[EvaluationKey, EvaluationRecord] = {}
        """The latest of each evaluation."""
        self._fd = -1
        self._one = threading.Lock()
        """Evaluations end at once, and each is kept by a thread."""

    def __enter__(self) -> Self:
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            self._lock()
            self._read()
        except BaseException:
            os.close(self._fd)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def append(self, record: EvaluationRecord) -> None:
        """Keep it; on return it is on disk."""
        self._write({"record": record.to_json()})
        self.records[record.key] = record

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = "another run has this directory"
            raise TaskListError(text, place=str(self.path)) from None

    def _read(self) -> None:
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            # The machine went down in the middle of a line, which is not there then.
            os.ftruncate(self._fd, whole)
        lines = data[:whole].splitlines()
        if not lines:
            self._write({"format": FORMAT})
            return
        for number, line in enumerate(lines, 1):
            self._take(line, number)

    def _take(self, line: bytes, number: int) -> None:
        try:
            body = json.loads(line)
            if number == 1:
                self._check_format(body)
                return
            record = EvaluationRecord.from_json(body["record"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TaskListError(
                f"line {number} is no line of such a journal ({error})", place=str(self.path)
            ) from None
        self.records[record.key] = record

    def _check_format(self, body: Any) -> None:  # noqa: ANN401 - any JSON value
        if body["format"] != FORMAT:
            raise ValueError(f"its format is {body['format']}, this version's {FORMAT}")

    def _write(self, body: dict[str, object]) -> None:
        data = json.dumps(body, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
        with self._one:
            end = os.fstat(self._fd).st_size
            try:
                while data:
                    data = data[os.write(self._fd, data) :]
                os.fsync(self._fd)
            except OSError:
                # Half a line with the next one behind it would be no line of such a journal.
                os.ftruncate(self._fd, end)
                raise
