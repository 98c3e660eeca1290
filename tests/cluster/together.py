"""Cases that run at once, each on sandboxes of its own, where one after the other would mostly wait.

CASES = Cases()

@CASES.add
async def a_killed_daemon_is_died(deployed): ...

@pytest.fixture(scope="module")
def outcomes(sandman, request):
    return CASES.run(sandman, request)

@pytest.mark.parametrize("name", CASES)
def test_fault(outcomes, name):
    outcomes.check(name)
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.cluster.deployed import Deployed

    Case = Callable[[Deployed], object]


class Outcomes:
    """What became of each."""

    def __init__(self) -> None:
        self._of: dict[str, BaseException | None] = {}

    async def note(self, name: str, case: Case, deployed: Deployed) -> None:
        """Run it to its end, whatever that is: the others go on."""
        begun = time.monotonic()
        try:
            if inspect.iscoroutinefunction(case):
                await case(deployed)
            else:
                await trio.to_thread.run_sync(case, deployed)
        except Exception as error:  # noqa: BLE001 - raised again by the test that asks
            self._of[name] = error
        else:
            self._of[name] = None
        print(f"{name}: {time.monotonic() - begun:.1f} s")

    def check(self, name: str) -> None:
        """Raise what it raised."""
        error = self._of[name]
        if error is not None:
            raise error


class Cases(Mapping[str, "Case"]):
    """By name, in the order in which they are written."""

    def __init__(self) -> None:
        self._cases: dict[str, Case] = {}

    def __getitem__(self, name: str) -> Case:
        return self._cases[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cases)

    def __len__(self) -> int:
        return len(self._cases)

    def add(self, case: Case) -> Case:
        """One more: a function of the installation, async or not."""
        self._cases[case.__name__] = case
        return case

    def run(self, deployed: Deployed, request: pytest.FixtureRequest) -> Outcomes:
        """Run those that this session asks for, at once."""
        asked = [
            item.callspec.params["name"]  # type: ignore[attr-defined]
            for item in request.session.items
            if item.path == request.path and "name" in getattr(item, "callspec", _NONE).params
        ]
        outcomes = Outcomes()

        async def all_of_them() -> None:
            async with trio.open_nursery() as nursery:
                for name in asked:
                    nursery.start_soon(outcomes.note, name, self._cases[name], deployed)

        trio.run(all_of_them)
        return outcomes


class _NONE:
    params: Mapping[str, object] = {}
