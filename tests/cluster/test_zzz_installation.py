"""The very last on the cluster, by its name: Sandman is removed as docs/operations.md says, and installed again by the
quickstart, from nothing to a first sandbox."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from sandman import names
from tests.cluster import deployed, faults, reading
from tests.cluster.bed import kubectl
from tests.cluster.calling import cli
from tests.examples.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = (
    "clusterroles", "clusterrolebindings", "validatingadmissionpolicies", "validatingadmissionpolicybindings",
    "validatingwebhookconfigurations", "mutatingwebhookconfigurations", "namespaces", "priorityclasses", "runtimeclasses",
    "customresourcedefinitions", "apiservices",
)  # fmt: skip


@pytest.fixture
def installed_again(sandman) -> Iterator[None]:
    """With the keys that tests have, whatever has become of it."""
    yield
    # Of a removal that broke off: what goes takes nothing new.
    faults.wait("no namespace is on its way out", lambda: not leaving(sandman), 180)
    deployed.deploy(sandman.bed)
    if "ci" in {one["id"] for one in json.loads(cli(sandman, "keys", "list", "--json"))}:
        cli(sandman, "keys", "revoke", "ci")


@pytest.mark.usefixtures("installed_again")
def test_it_is_removed_and_the_quickstart_leads_to_a_first_sandbox(sandman, tmp_path):
    others = of_cluster(sandman)
    commands = [one for one in reading.typed(reading.OPERATIONS) if one.startswith(reading.REMOVE)]
    (tmp_path / "last").mkdir()
    reading.run(
        sandman, reading.OPERATIONS, commands, tmp_path / "last", Reader(has='cd "$OWN_OVERLAY"')
    )
    gone = {one for one in others if "/sandman-" in one}
    assert {f"namespace/{names.SYSTEM_NAMESPACE}", f"namespace/{names.SANDBOX_NAMESPACE}"} <= gone
    assert of_cluster(sandman) == others - gone

    said = reading.run(sandman, reading.QUICKSTART, reading.typed(reading.QUICKSTART), tmp_path)
    told = dict(line.split() for line in (tmp_path / "images").read_text().splitlines())
    assert told == dict(sandman.installation.images)
    assert "a sandbox cannot connect to another one" in said
    assert re.search(r"^Linux .* GNU/Linux$", said, re.MULTILINE), said
    sandman.wait_nothing_leased(60)


def leaving(sandman) -> list[str]:
    """Which of Sandman's namespaces are being deleted."""
    query = ("get", "namespaces", "-o", "json")
    return [
        one["metadata"]["name"]
        for one in json.loads(kubectl(sandman.bed, *query))["items"]
        if one["metadata"]["name"] in {names.SYSTEM_NAMESPACE, names.SANDBOX_NAMESPACE}
        and "deletionTimestamp" in one["metadata"]
    ]


def of_cluster(sandman) -> set[str]:
    """What is in no namespace, but those of other tests, which may be on their way out."""
    found = kubectl(sandman.bed, "get", ",".join(KINDS), "-o", "name").split()
    return {one for one in found if not one.startswith("namespace/sandman-test-")}
