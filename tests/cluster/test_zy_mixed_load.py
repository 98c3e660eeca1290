"""Mixed random load with faults, in two tenants and through two gateways. The long form: make soak-mixed.

It kills the API server and gateways, so it comes after the tests that need them undisturbed.
"""

from __future__ import annotations

import json
import os
import secrets

import pytest

from sandman import names
from tests.cluster import faults
from tests.mixed import run

MINUTES = float(os.environ.get("SANDMAN_SOAK_MINUTES", "0.9"))
SHORT_SEED = 20261130
"""Of the short form, which must be the same plan each time to tell a change from chance; the long one looks for more."""
SEED = int(
    os.environ.get("SANDMAN_SOAK_SEED")
    or (SHORT_SEED if MINUTES < 2 else secrets.randbelow(1_000_000))
)
GAP_S = 6.0 if MINUTES < 2 else 25.0
"""Between two faults. The short form has each of them once; the long one lets most of them heal before the next."""
RESERVED_S = 90.0
"""A reservation that could not be ended is over by itself then, and what was prepared for it is gone."""


@pytest.fixture(autouse=True)
def nothing_is_left(sandman):
    yield
    forget_ended(sandman)
    sandman.wait_nothing_leased(60)


def forget_ended(deployed) -> None:
    """A pod that failed is kept for minutes, so that its owner can be told why. Whose release of it was lost in the
    faults does not ask any more, and the next test would take it for a leak."""
    for phase in ("Failed", "Succeeded"):
        deployed.kubectl(
            "delete", "pods", "--field-selector", f"status.phase={phase}", "--wait=false"
        )


def not_free(deployed) -> list[str]:
    """Names of pods that are something else than free placeholders."""
    text = deployed.kubectl("get", "pods", "-l", f"{names.LABEL_STATE}!=free", "-o", "json")
    return [
        one["metadata"]["name"]
        for one in json.loads(text)["items"]
        if names.LABEL_POOL in one["metadata"]["labels"]
        and one["status"].get("phase") in ("Pending", "Running")
    ]


@pytest.mark.slow
@pytest.mark.timeout(MINUTES * 60 + 900)
async def test_in_the_end_the_pods_are_the_sandboxes_that_callers_hold(sandman):
    print(f"seed {SEED}: SANDMAN_SOAK_SEED={SEED} repeats this plan", flush=True)
    with run.pools(sandman):
        load = run.Load(sandman, SEED, MINUTES * 60, GAP_S)
        try:
            await load.run()
        finally:
            print(load.report(), flush=True)
        faults.wait("nothing but free pods is left", lambda: not not_free(sandman), RESERVED_S)
    assert load.ledger.wrong == []
    done = {one.fault for one in load.ledger.faults}
    assert len(done) >= 6, "faults were to be tried, and were not"
    assert load.ledger.counts["looked at in the end"] > 0
