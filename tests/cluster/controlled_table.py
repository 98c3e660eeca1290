"""What `controlled` keeps, read again: verdicts, flips, certificates and what the neighbours burnt, in one table. Needs no cluster."""

from __future__ import annotations

import base64
import json
import re
import statistics
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from sandman import certificates
from sandman.evaluation.records import EvaluationRecord
from sandman.evaluation.report import summarize
from tests.cluster import neighbours
from tests.cluster.neighbours import Burnt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

EVAL, SHARED, THROTTLED = "eval", "shared", "throttled"
BURNT = "burnt.jsonl"
_VERDICT = re.compile(rb'("verdict": ?)"(un)?controlled"')


@dataclass(frozen=True, slots=True)
class Cell:
    """A task in an arm.

    Args:
        records: its evaluations.
        verdicts: of certificates that were proven: verdict, and how many have each reason.
        unproven: what certificates were refused for; none should be.
        tampered: of how many certificates a changed one was refused.
    """

    records: Sequence[EvaluationRecord]
    verdicts: Mapping[str, int]
    unproven: Sequence[str]
    tampered: int

    @property
    def resolved(self) -> int:
        """How many."""
        return sum(one.outcome == "resolved" for one in self.records)

    @property
    def flips(self) -> int:
        """Verdicts unlike most."""
        return summarize([], self.records).flips

    @property
    def certified(self) -> int:
        """How many have a certificate."""
        return sum(one.certificate is not None for one in self.records)

    def text(self) -> str:
        """For the table."""
        walls = [float(str(one.facts["wall_s"])) for one in self.records if "wall_s" in one.facts]
        took = f"{statistics.median(walls):.1f}, {max(walls):.1f}" if walls else "none"
        controlled = self.verdicts.get(certificates.CONTROLLED, 0)
        return f"{self.resolved} of {len(self.records)} | {self.flips} | {took} | {controlled} of {self.certified}"


@dataclass(frozen=True, slots=True)
class Found:
    """A whole measurement, as far as it is there: cells by arm and task, neighbours by arm."""

    cells: Mapping[str, Mapping[str, Cell]]
    burnt: Mapping[str, Mapping[str, Burnt]]

    def lines(self) -> list[str]:
        """The table, and what is below it."""
        arms = (self.cells.get(EVAL, {}), self.cells.get(SHARED, {}))
        head = "resolved | flips | script: median, most (s) | certificates `controlled`"
        lines = [f"| task | with control: {head} | without: {head} |", "|---" * 9 + "|"]
        for task in dict.fromkeys(task for arm in arms for task in arm):
            both = [arm[task].text() if task in arm else "| | |" for arm in arms]
            lines.append(f"| {task} | {both[0]} | {both[1]} |")
        lines.append("")
        for arm, cells in self.cells.items():
            lines += self._below(arm, list(cells.values()))
        return lines

    def _below(self, arm: str, cells: Sequence[Cell]) -> list[str]:
        verdicts: Counter[str] = Counter()
        for cell in cells:
            verdicts.update(cell.verdicts)
        made, bad = sum(c.certified for c in cells), sum(len(c.unproven) for c in cells)
        changed = sum(cell.tampered for cell in cells)
        every = sum(len(cell.records) for cell in cells)
        said = ", ".join(f"{name} {count}" for name, count in sorted(verdicts.items()))
        lines = [
            f"{arm}: {every} evaluations, {made} certificates, {made - bad} verified ({said});"
            f" with another verdict in its text {changed} of {made} refused"
        ]
        if arm in self.burnt:
            lines.append(f"{arm}: neighbours: {neighbours.told(self.burnt[arm])}")
        return lines

    def against(self) -> list[str]:
        """What of it speaks against control; empty when nothing does."""
        said = []
        for arm, cells in self.cells.items():
            for task, cell in cells.items():
                said += [f"{arm} {task}: {why}" for why in _against(arm, cell)]
            if arm not in self.burnt:
                said.append(f"{arm}: what the neighbours burnt is not known")
            else:
                said += [f"{arm}: {why}" for why in neighbours.lacking(self.burnt[arm])]
        if EVAL not in self.cells:
            said.append("nothing was evaluated with control")
        if not any(cell.flips for cell in self.cells.get(SHARED, {}).values()):
            said.append("nothing flips without control, so that nothing is shown")
        return said


def _against(arm: str, cell: Cell) -> list[str]:
    every = len(cell.records)
    said = [f"a certificate is not proven: {why}" for why in cell.unproven]
    if cell.certified < every:
        said.append(f"{every - cell.certified} have no certificate")
    believed = cell.certified - len(cell.unproven) - cell.tampered
    if believed:
        said.append(f"{believed} changed certificates were believed")
    without = sum(not one.is_verdict for one in cell.records)
    if without:
        said.append(f"{without} have no verdict")
    controlled = cell.verdicts.get(certificates.CONTROLLED, 0)
    if arm == EVAL:
        if cell.flips:
            said.append(f"{cell.flips} flips")
        if cell.resolved <= every // 2:
            said.append(f"resolved {cell.resolved} of {every}")
        if controlled < cell.certified:
            said.append(f"{cell.certified - controlled} are uncontrolled")
    elif controlled:
        said.append(f"{controlled} are controlled")
    if arm == THROTTLED and cell.verdicts.get("because of throttled", 0) < cell.certified:
        said.append("not all say that they were throttled")
    return said


def tampered(envelope: Mapping[str, Any]) -> dict[str, object]:
    """The same certificate with the other verdict in its text."""
    text = base64.b64decode(envelope["payload"])
    other = _VERDICT.sub(lambda m: m[1] + (b'"controlled"' if m[2] else b'"uncontrolled"'), text)
    assert other != text
    return {**envelope, "payload": base64.b64encode(other).decode()}


def is_refused(envelope: object, keys: Mapping[str, bytes]) -> bool:
    """Whether it is said that this is not what was signed."""
    try:
        certificates.verify(envelope, keys)
    except certificates.CertificateTamperedError:
        return True
    return False


def cell(records: Sequence[EvaluationRecord], keys: Mapping[str, bytes]) -> Cell:
    """These evaluations, with each certificate verified, and refused once it is changed."""
    verdicts: Counter[str] = Counter()
    unproven, refused = [], 0
    for record in records:
        if record.certificate is None:
            continue
        try:
            one = certificates.verify(record.certificate, keys)
        except certificates.CertificateError as error:
            unproven.append(f"{type(error).__name__}: {error}")
            continue
        verdicts[one.verdict] += 1
        verdicts.update({f"because of {reason.code}" for reason in one.reasons})
        refused += is_refused(tampered(record.certificate), keys)
    return Cell(records, verdicts, unproven, refused)


def read(out: Path) -> Found:
    """What is kept in a directory."""
    keys: dict[str, bytes] = {}
    for file in sorted((out / "keys").glob("*.json")):
        keys |= certificates.read_keys(json.loads(file.read_text()))
    cells: dict[str, dict[str, Cell]] = {}
    for arm in (EVAL, SHARED, THROTTLED):
        for file in sorted((out / arm).glob("*/journal.jsonl")):
            cells.setdefault(arm, {})[file.parent.name] = cell(records_of(file), keys)
    return Found(cells, read_burnt(out))


def records_of(journal: Path) -> list[EvaluationRecord]:
    """The latest of each evaluation, while a run may still write there."""
    found: dict[object, EvaluationRecord] = {}
    for line in journal.read_text().split("\n")[1:-1]:
        record = EvaluationRecord.from_json(json.loads(line)["record"])
        found[record.key] = record
    return list(found.values())


def keep_burnt(out: Path, arm: str, burnt: Sequence[Burnt]) -> None:
    """Append what the neighbours burnt in a piece."""
    with (out / BURNT).open("a") as file:
        for one in burnt:
            file.write(json.dumps({"arm": arm, "burnt": asdict(one)}) + "\n")


def read_burnt(out: Path) -> dict[str, dict[str, Burnt]]:
    """By arm, of all pieces together."""
    by: dict[str, list[Burnt]] = {}
    if (out / BURNT).exists():
        for line in (out / BURNT).read_text().splitlines():
            body = json.loads(line)
            by.setdefault(body["arm"], []).append(Burnt(**body["burnt"]))
    return {arm: neighbours.together(burnt) for arm, burnt in by.items()}
