"""Steps of a preparation: what is taken, what is refused, and when two are the same."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import steps
from sandman.errors import BadRequestError


def test_each_kind_becomes_one_call_of_the_daemon():
    made = steps.parse([
        {"exec": {"argv": ["make"], "cwd": "/src", "timeout_s": 60}},
        {"file": {"path": "/a b", "content": "hé", "mode": "0600", "user": 5}},
        {"file": {"path": "/raw", "content_b64": "AAH/"}},
        {"archive": {"path": "/src", "tar_b64": "AA==", "user": "me&x"}},
    ])  # fmt: skip
    execution, text, raw, archive = made.calls
    assert (execution.method, execution.path) == ("POST", "/v1/exec")
    assert json.loads(execution.body) == {
        "argv": ["make"], "cwd": "/src", "timeout_s": 60.0,
        "merge_stderr": True, "output_limit": steps.OUTPUT_LIMIT,
    }  # fmt: skip
    assert (text.method, text.path) == ("PUT", "/v1/files?path=%2Fa%20b&mode=0600&user=5")
    assert text.body == "hé".encode()
    assert raw.body == b"\x00\x01\xff"
    assert archive.path == "/v1/archive?path=%2Fsrc&user=me%26x"
    assert archive.media_type == "application/x-tar"


def test_none_and_an_empty_list_are_no_steps():
    assert not steps.parse(None)
    assert not steps.parse([])
    assert steps.parse([{"exec": {"argv": ["true"]}}])


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({}, "prepare"),
        ([{"exec": {"argv": ["a"]}}] * 33, "prepare"),
        ([{"file": {"path": "/a", "content": "x" * 170_000}}], "prepare"),
        ([{}], "prepare[0]"),
        ([{"exec": {"argv": ["a"]}, "file": {}}], "prepare[0]"),
        ([{"run": {}}], "prepare[0]"),
        ([{"exec": []}], "prepare[0].exec"),
        ([{"exec": {}}], "prepare[0].exec.argv"),
        ([{"exec": {"argv": ["a"], "detached": True}}], "prepare[0].exec.detached"),
        ([{"exec": {"argv": ["a"], "exec_id": "x"}}], "prepare[0].exec.exec_id"),
        ([{"exec": {"argv": ["a"], "terminal": {}}}], "prepare[0].exec.terminal"),
        ([{"file": {"path": "a", "content": ""}}], "prepare[0].file.path"),
        ([{"file": {"path": "/" + "a" * 4096, "content": ""}}], "prepare[0].file.path"),
        ([{"file": {"path": "/a"}}], "prepare[0].file.content"),
        ([{"file": {"path": "/a", "content": "", "owner": 1}}], "prepare[0].file.owner"),
        ([{"exec": {"argv": ["a"]}}, {"archive": {"path": "/a"}}], "prepare[1].archive.tar_b64"),
        ([{"archive": {"path": "/a", "tar_b64": "?"}}], "prepare[0].archive.tar_b64"),
    ],
)  # fmt: skip
def test_what_is_no_step_is_refused_with_its_own_field(value, field):
    with pytest.raises(BadRequestError) as caught:
        steps.parse(value)
    assert caught.value.field == field


def test_the_same_steps_are_kept_once():
    body = [{"file": {"path": "/a", "content": "x"}}]
    assert steps.parse(body) is steps.parse(json.loads(json.dumps(body)))


def test_the_hash_tells_tenants_images_and_steps_apart():
    one, other = steps.parse([{"exec": {"argv": ["a"]}}]), steps.parse([{"exec": {"argv": ["b"]}}])
    hashes = {
        steps.prepared_hash(tenant, image, what)
        for tenant in ("acme", "zeta")
        for image in ("i:1", "i:2")
        for what in (one, other, steps.NO_STEPS)
    }
    assert len(hashes) == 12


@given(st.permutations(["argv", "cwd", "env"]))
def test_the_order_of_members_makes_no_difference(order):
    whole = {"argv": ["a"], "cwd": "/", "env": {"A": "1"}}
    body = [{"exec": {name: whole[name] for name in order}}]
    assert steps.parse(body).digest == steps.parse([{"exec": whole}]).digest
