"""Where local mode makes cgroups, and what it writes; that they hold is seen in `flow/test_local_limits`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from gateway.model import NO_AMOUNTS, Amounts
from gateway.provider import RefusedError
from gateway.provider.local import cgroups
from gateway.provider.local.images import Images
from gateway.provider.local.isolation import Machine
from gateway.provider.local.running import Here, Place, Runner

if TYPE_CHECKING:
    from pathlib import Path

OLDER = """\
30 20 0:26 / {top}/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
31 20 0:27 / {top}/memory rw shared:10 - cgroup cgroup rw,memory
32 20 0:28 / {top}/pids rw - cgroup cgroup rw,pids
33 20 0:29 / {top}/unified rw - cgroup2 cgroup2 rw
"""
UNIFIED = "29 20 0:25 / {top} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def allowed(place: Path) -> str:
    return ""


def made(top: Path, *names: str) -> None:
    for name in names:
        (top / name).mkdir(parents=True)


def test_of_version_1_each_controller_has_a_place(tmp_path):
    made(tmp_path, "cpu,cpuacct", "memory/user/me", "pids")
    own = "4:memory:/user/me\n3:pids:/\n2:cpu,cpuacct:/gone\n0::/user\n"
    found = cgroups.find(own, OLDER.format(top=tmp_path), allowed)
    # In a container the kernel may name a group that is not mounted there.
    places = {"cpu": "cpu,cpuacct", "memory": "memory/user/me", "pids": "pids"}
    assert found == cgroups.Tree(1, {one: tmp_path / place for one, place in places.items()})


def test_of_version_2_the_nearest_group_whose_children_have_the_controllers(tmp_path):
    made(tmp_path, "user/app/shell")
    for place, given in (
        ("", "cpu memory pids"),
        ("user", "cpuset cpu memory pids"),
        ("user/app", "memory"),
    ):
        (tmp_path / place / "cgroup.subtree_control").write_text(given)
    found = cgroups.find("0::/user/app/shell\n", UNIFIED.format(top=tmp_path), allowed)
    assert found == cgroups.Tree(2, dict.fromkeys(cgroups.CONTROLLERS, tmp_path / "user"))


@pytest.mark.parametrize("mounts", [OLDER, UNIFIED])
def test_who_may_make_none_hears_why(tmp_path, mounts):
    made(tmp_path, "cpu,cpuacct", "memory", "pids")
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids")
    assert cgroups.find("0::/\n", mounts.format(top=tmp_path), lambda _: "forbidden") == "forbidden"


def test_where_there_are_none_it_is_said(tmp_path):
    assert cgroups.find("0::/\n", "", allowed) == "no cgroups are mounted"
    found = cgroups.find("0::/\n", UNIFIED.format(top=tmp_path), allowed)
    assert found == "cgroups: no group above this process's has them for its children"
    assert cgroups.may_make(tmp_path) == "this user may make no cgroups"
    (tmp_path / "cgroup.procs").touch()
    assert cgroups.may_make(tmp_path) == ""


def test_what_is_written():
    limits = Amounts(cpu=1500, memory=2**30)
    assert cgroups.writes(2, limits) == [
        ("memory", "memory.max", "1073741824"),
        ("cpu", "cpu.max", "150000 100000"),
        ("pids", "pids.max", "4096"),
    ]
    assert cgroups.writes(1, limits) == [
        ("memory", "memory.limit_in_bytes", "1073741824"),
        ("cpu", "cpu.cfs_period_us", "100000"),
        ("cpu", "cpu.cfs_quota_us", "150000"),
        ("pids", "pids.max", "4096"),
    ]
    assert [text for *_, text in cgroups.writes(2, NO_AMOUNTS)] == ["max", "max 100000", "4096"]
    assert [text for *_, text in cgroups.writes(1, NO_AMOUNTS)][::2] == ["-1", "-1"]
    # The kernel refuses less.
    assert cgroups.writes(2, Amounts(cpu=1))[1][2] == "1000 100000"


@pytest.fixture
def unified(tmp_path) -> cgroups.Groups:
    """Directories in place of a kernel's of version 2."""
    return cgroups.Groups(cgroups.Tree(2, dict.fromkeys(cgroups.CONTROLLERS, tmp_path)), "me")


def test_groups_of_version_2(unified, tmp_path):
    unified.open()
    own = tmp_path / "sandman-me"
    assert (own / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    group = unified.make("box", NO_AMOUNTS)
    assert group.procs == (str(own / "box/cgroup.procs"),)
    assert group.shown == (("", str(own / "box")),)
    (own / "box/memory.current").write_text("2048\n")
    with pytest.raises(OSError, match="more memory than 1024"):
        group.limit(Amounts(memory=1024))
    group.limit(Amounts(memory=4096))
    assert (own / "box/memory.max").read_text() == "4096"
    assert not group.was_short()
    (own / "box/memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert group.was_short()


def test_what_a_killed_gateway_left_is_taken_away_and_one_that_runs_keeps_what_it_has(
    unified, tmp_path
):
    """Its groups are empty at moments, and then they could be taken away."""
    here, gone = f"sandman-{os.getpid()}-0a1b2c3d", f"sandman-{2**22 + 1}-0a1b2c3d"
    made(tmp_path, f"{here}/box", f"{gone}/box", "sandman-odd/box", "other/box")
    unified.sweep()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["other", here]


def test_where_none_are_set_none_are_promised(tmp_path):
    here = Here(machine=Machine(cgroup="no cgroups are mounted"), scratch=tmp_path)
    place = Place(here=here, daemon_port=0, key_id="k", daemon_key=b"")
    runner = Runner(place, Images({}, tmp_path), lambda: 0.0)
    runner.check(NO_AMOUNTS)
    with pytest.raises(RefusedError) as refused:
        runner.check(Amounts(memory=2**20))
    assert "sets no limits here: no cgroups are mounted" in str(refused.value.error)


def test_a_limit_that_is_refused_leaves_nothing(unified, tmp_path):
    unified.open()
    with pytest.raises(OSError):
        # Nothing tells here how much is used.
        unified.make("box", Amounts(memory=1024))
    assert not (tmp_path / "sandman-me/box").exists()


def test_where_the_kernel_gives_no_group_it_is_said(tmp_path, monkeypatch):
    (tmp_path / "own").write_text("0::/\n")
    (tmp_path / "mounts").write_text(UNIFIED.format(top=tmp_path))
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids")
    monkeypatch.setattr(cgroups, "OWN", tmp_path / "own")
    monkeypatch.setattr(cgroups, "MOUNTS", tmp_path / "mounts")
    with cgroups.opened("me") as groups:
        assert isinstance(groups, cgroups.Groups)
        assert (tmp_path / "sandman-me").is_dir()
    (tmp_path / "sandman-me/cgroup.subtree_control").unlink()
    (tmp_path / "sandman-me").rmdir()
    (tmp_path / "sandman-me").write_text("in the way")
    with cgroups.opened("me") as groups:
        assert str(groups).startswith("cgroups: ")
    (tmp_path / "mounts").write_text("")
    with cgroups.opened("me") as groups:
        assert groups == "no cgroups are mounted"
