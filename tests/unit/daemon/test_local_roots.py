"""Roots of local mode: built in namespaces of a process of their own, and looked at there."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from daemon.local import confine, rootfs

BUILD = """
import json, os, sys
from daemon.local import confine, rootfs, syscalls

told = json.loads(sys.argv[1])
confine.enter_namespaces(shares_network=False)
child = os.fork()
if child == 0:
    confine._bring_up_loopback()
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    root = rootfs.Root(**told)
    (rootfs._build if root.image else rootfs._show_own)(root)
    rootfs._mount_proc(root.target)
    rootfs._mount_devices(root.target)
    syscalls.keep_capabilities(confine.KEPT_CAPABILITIES)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    def attempt(path):
        try:
            open(root.target + path, "w").close()
        except OSError as error:
            return error.errno
        return 0
    found = {
        "top": sorted(os.listdir(root.target)), "dev": sorted(os.listdir(root.target + "/dev")),
        "tmp": sorted(os.listdir(root.target + "/tmp")), "first": os.readlink(root.target + "/proc/self"),
        "tries": [attempt(path) for path in ("/etc/mark", "/tmp/mark", "/proc/sys/vm/swappiness")],
    }
    print(json.dumps(found), flush=True)
    os._exit(0)
os._exit(os.waitpid(child, 0)[1] != 0)
"""
EROFS = 30


def build(root: dict) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", BUILD, json.dumps(root)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def image(tmp_path) -> Path:
    top = tmp_path / "image"
    (top / "bin").mkdir(parents=True)
    (top / "bin/tool").write_text("x")
    (top / "bin/tool").chmod(0o4751)
    (top / "etc").symlink_to("/etc")
    (top / "proc").write_text("no directory")
    os.mkfifo(top / "pipe")
    return top


@pytest.mark.parametrize("is_copied", [False, True])
def test_an_images_root_is_whole_and_the_image_stays_as_it_is(image, tmp_path, is_copied):
    parts = {name: tmp_path / name for name in ("target", "upper", "work")}
    for part in parts.values():
        part.mkdir()
    told = {name: str(path) for name, path in parts.items()}
    if is_copied:
        told = {"target": told["target"]}
    found = build({**told, "image": str(image), "files": [["hosts", "127.0.0.1 localhost"]]})
    top = {"bin", "dev", "etc", "proc", "sys", "tmp"} | (set() if is_copied else {"pipe"})
    assert set(found["top"]) == top
    assert {"null", "pts", "shm", "ptmx", "fd"} <= set(found["dev"])
    # A link of the image's leads nowhere: what is written stays in the sandbox.
    assert (found["tries"], found["first"]) == ([0, 0, EROFS], "1")
    assert sorted(one.name for one in image.iterdir()) == ["bin", "etc", "pipe", "proc"]
    assert not Path("/etc/mark").exists()


def test_the_machines_root_is_read_only_and_its_homes_are_empty(tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    kept = tmp_path / "kept"
    kept.mkdir()
    found = build({"target": str(target), "kept": [str(kept)]})
    assert (
        found["tmp"] == sorted({kept.relative_to("/tmp").parts[0]})
        if kept.is_relative_to("/tmp")
        else []
    )
    assert found["tries"] == [EROFS, 0, EROFS]
    assert not Path("/tmp/mark").exists()


def test_a_copy_has_modes_times_and_links(image, tmp_path):
    target = tmp_path / "copy"
    target.mkdir()
    rootfs.copy_tree(str(image), str(target))
    tool = (target / "bin/tool").stat()
    assert (stat.S_IMODE(tool.st_mode), tool.st_mtime_ns) == (
        0o4751,
        (image / "bin/tool").stat().st_mtime_ns,
    )
    assert (target / "etc").readlink() == Path("/etc")
    assert not (target / "pipe").exists()


@pytest.mark.parametrize(
    "line", [b"", b"[]\n", b"{}\n", b"no json\n", b'{"root": null, "odd": 1}\n']
)
def test_without_a_plan_nothing_is_started(line):
    done = subprocess.run(
        [sys.executable, "-m", "daemon", "confine"], input=line, capture_output=True, check=False
    )
    assert (done.returncode, b"cannot confine" in done.stderr) == (confine.EXIT_CANNOT, True)


def test_a_path_in_an_overlays_options_is_a_path():
    assert rootfs._escaped("/a:b,c\\d") == "/a\\:b\\,c\\\\d"
