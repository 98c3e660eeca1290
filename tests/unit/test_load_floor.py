"""The control of load tests: its claim is the gateway's own, and it touches nobody else's pods."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest

from gateway.model import Assignment, Instance, Tier
from gateway.provider import patches
from loadtest import __main__ as program
from loadtest import floor

NOW = time.time()
PLACEHOLDER = Instance(
    namespace="ns", name="p", uid="u", version="1", pool="root", state="free", image="x"
)


def test_its_patch_is_the_gateways():
    assignment = Assignment(
        claim_id="c", previous_boot_id=None, tier=Tier.WARM, tenant="floor", image="x",
        expires_at=NOW + 600, max_s=600.0, request={"pool": "root"},
    )  # fmt: skip
    theirs = patches.claim(PLACEHOLDER, assignment, NOW)
    mine = floor.claim({"metadata": {"uid": "u"}}, NOW)
    assert sorted((one["op"], one["path"]) for one in mine) == sorted(
        (one["op"], one["path"]) for one in theirs
    )
    sizes = [len(json.dumps(patch)) for patch in (mine, theirs)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.3)
    assert dataclasses.asdict(PLACEHOLDER)["uid"] == mine[0]["value"]


def target(path, **more):
    document = {"base_url": "https://127.0.0.1:1", "tenants": {"a": "k"}, "pool": "root", **more}
    path.write_text(json.dumps(document))
    return str(path)


@pytest.mark.parametrize(
    ("more", "flags", "why"),
    [
        ({}, [], "has no api_server"),
        ({"api_server": {"url": "https://10.0.0.1:6443"}}, [], "say --mine 10.0.0.1"),
        ({"api_server": {"url": "https://127.0.0.1:1"}}, ["--n", "100000"], "--n is 1 to 2000"),
        ({"api_server": {"url": "https://127.0.0.1:1"}}, [], "Connection refused"),
    ],
)
def test_what_may_not_or_cannot_be_is_told_in_a_line(tmp_path, capsys, more, flags, why):
    given = ["floor", "--target", target(tmp_path / "t.json", **more), *flags]
    assert program.main(given) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1
