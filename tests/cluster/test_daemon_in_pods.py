"""Telling points of the list of behaviour in real pods, by the gateway: each image has one sandbox.

The whole list runs without a cluster (`tests/conformance`). Here is what the way through kubelet, containerd,
network and gateway could change: what is large, what takes long, what dies, and who one is.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from typing import TYPE_CHECKING

import pytest

import sandman as sdk
from sandman._core.values import Stdout
from sandman.errors import PathDeniedError, UserUnsupportedError
from tests.conformance.cells import PYTHON

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandman.sync import Sandbox
    from tests.cluster.deployed import Deployed

MIB = 1 << 20
IMAGES = {"debian": "root", "busybox": "root", "empty": "root", "nonroot": "restricted"}
WITH_SHELL = ["debian", "busybox", "nonroot"]


class Sandboxes:
    """One sandbox of each image, allocated when it is first asked for."""

    def __init__(self, client: sdk.SyncClient, deployed: Deployed) -> None:
        self._client = client
        self._deployed = deployed
        self._made: dict[str, Sandbox] = {}

    def get(self, image: str) -> Sandbox:
        """The sandbox of this image."""
        if image not in self._made:
            self._made[image] = self._client.create(
                image=self._deployed.image(image), pool=IMAGES[image], wait_s=180
            )
        return self._made[image]

    def release(self) -> None:
        """Let all of them go."""
        for box in self._made.values():
            box.release()


@pytest.fixture(scope="module")
def sandboxes(sandman: Deployed) -> Iterator[Sandboxes]:
    made = sandman.installation
    with sdk.SyncClient(made.url, made.token, ca=made.ca, server_name=made.server_name) as client:
        every = Sandboxes(client, sandman)
        yield every
        every.release()
    sandman.wait_nothing_leased(60)


@pytest.fixture
def box(sandboxes: Sandboxes, request: pytest.FixtureRequest) -> Sandbox:
    return sandboxes.get(request.param)


@pytest.fixture
def place(box: Sandbox) -> Iterator[str]:
    """A directory of the test's own, where the sandbox's user may write."""
    path = f"/tmp/{uuid.uuid4().hex}"
    box.files.mkdir(path, parents=True)
    yield path
    box.files.delete(path, recursive=True)


every_image = pytest.mark.parametrize("box", IMAGES, indirect=True)
with_shell = pytest.mark.parametrize("box", WITH_SHELL, indirect=True)


def others(box: Sandbox) -> set[int]:
    """Pids of what runs there besides the daemon and the one who looks."""
    script = (
        "import os\n"
        "for name in os.listdir('/proc'):\n"
        "    if name.isdigit() and int(name) not in (1, os.getpid()):\n"
        "        try: state = open(f'/proc/{name}/stat').read().rpartition(')')[2].split()[0]\n"
        "        except OSError: continue\n"  # it has just ended
        "        if state not in 'ZX': print(name)"
    )
    return set(map(int, box.exec([*PYTHON, script], check=True).stdout.split()))


def wait_alone(box: Sandbox) -> None:
    deadline = time.monotonic() + 10
    while left := others(box):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


@every_image
def test_point_01_a_mebibyte_of_arguments_is_verbatim(box: Sandbox) -> None:
    many = ["x" * 65536] * 16
    script = "import sys; sys.stdout.write(chr(0).join(sys.argv[1:]))"
    assert box.exec([*PYTHON, script, *many]).stdout_text.split("\0") == many


@every_image
def test_point_03_05_streams_are_exact_and_codes_too(box: Sandbox) -> None:
    script = "import os, sys; os.write(1, bytes(range(256)) * 64); os.write(2, b'\\0e'); os._exit(int(sys.argv[1]))"
    for code in (0, 3, 126, 127, 255):
        result = box.exec([*PYTHON, script, str(code)])
        assert (result.stdout, result.stderr) == (bytes(range(256)) * 64, b"\0e")
        assert (result.exit_code, result.signal, result.start_error) == (code, None, None)
    result = box.exec([*PYTHON, "import os; os.kill(os.getpid(), 9)"])
    assert (result.exit_code, result.signal, bool(result.oom_killed)) == (137, 9, False)


@every_image
def test_point_07_fifty_mebibytes_of_stdin(box: Sandbox) -> None:
    script = (
        "import os\ncount = 0\nwhile piece := os.read(0, 65536): count += len(piece)\nprint(count)"
    )
    assert box.exec([*PYTHON, script], stdin=b"\0" * (50 * MIB)).stdout == b"52428800\n"


def test_point_10_root_may_be_anybody_and_others_only_themselves(sandboxes: Sandboxes) -> None:
    script = "import os; print(os.getuid(), os.environ['HOME'])"
    root = sandboxes.get("debian")
    assert root.exec([*PYTHON, script], user="nobody").stdout == b"65534 /nonexistent\n"
    user = sandboxes.get("nonroot")
    assert user.exec([*PYTHON, script]).stdout.startswith(b"1000 ")
    with pytest.raises(UserUnsupportedError, match="nobody"):
        user.exec([*PYTHON, script], user="nobody")


TREE = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"], {})
    os._exit(0)
os.wait()
os.write(1, b"up")
time.sleep(600)
"""


@every_image
def test_point_14_15_a_timeout_ends_the_whole_tree_and_keeps_what_was_said(
    box: Sandbox,
) -> None:
    result = box.exec([*PYTHON, TREE], timeout_s=1)
    assert (result.timed_out, result.stdout) == (True, b"up")
    wait_alone(box)


@every_image
def test_point_18_a_caller_that_leaves_ends_its_command(box: Sandbox) -> None:
    with box.stream([*PYTHON, TREE]) as stream:
        assert next(iter(stream)) == Stdout(b"up")
    wait_alone(box)


@with_shell
def test_point_22_two_million_lines_are_complete(box: Sandbox) -> None:
    size, last = 0, b""
    with box.stream(shell="seq 1 2000000") as stream:
        for event in stream:
            assert isinstance(event, Stdout)
            size += len(event.data)
            last = (last + event.data)[-8:]
    assert (size, last) == (14_888_896, b"2000000\n")


@with_shell
def test_point_23_24_a_background_child_goes_on_and_holds_no_answer(box: Sandbox) -> None:
    result = box.run("(sleep 600 &) ; exit 42", timeout_s=60)
    assert (result.exit_code, result.timed_out) == (42, False)
    left = others(box)
    assert len(left) == 1
    box.exec([*PYTHON, f"import os; os.kill({left.pop()}, 9)"], check=True)
    wait_alone(box)


@every_image
def test_point_26_53_a_handle_feeds_and_comes_back_where_it_was(box: Sandbox) -> None:
    script = (
        "import os\nwhile line := os.read(0, 100): os.write(1, b'<' + line + b'>')\nos._exit(5)"
    )
    process = box.start([*PYTHON, script], stdin_open=True)
    process.write("one")
    with process.follow() as output:
        assert next(iter(output)) == Stdout(b"<one>")
        offsets = dict(output.offsets)
    process.write("two")
    process.close_stdin()
    with box.process(process.exec_id).follow(**offsets) as output:
        assert b"".join(event.data for event in output) == b"<two>"
    assert output.result.exit_code == 5
    assert box.process(process.exec_id).wait().stdout == b"<one><two>"


@every_image
def test_point_28_orphans_become_no_zombies(box: Sandbox) -> None:
    orphans = (
        "import os\nfor n in range(200):\n    if os.fork() == 0:\n        if os.fork() == 0: os._exit(0)\n"
        "        os._exit(0)\n    os.wait()"
    )
    assert box.exec([*PYTHON, orphans]).exit_code == 0
    count = (
        "import os; print(sum(') Z ' in open(f'/proc/{n}/stat').read()"
        " for n in os.listdir('/proc') if n.isdigit()))"
    )
    deadline = time.monotonic() + 5
    while box.exec([*PYTHON, count]).stdout != b"0\n":
        assert time.monotonic() < deadline


@every_image
def test_point_31_37_large_files_and_trees_there_and_back(
    box: Sandbox, place: str, tmp_path
) -> None:
    data = os.urandom(MIB) * 50
    box.files.write(f"{place}/a/big", data, mode=0o750)
    assert (
        hashlib.sha256(box.files.read(f"{place}/a/big")).digest() == hashlib.sha256(data).digest()
    )
    (tmp_path / "here").mkdir()
    (tmp_path / "here/link").symlink_to("script")
    (tmp_path / "here/script").write_text("x")
    (tmp_path / "here/script").chmod(0o755)
    box.files.upload_dir(tmp_path / "here", f"{place}/a/tree")
    box.files.download_dir(place, tmp_path / "back")
    assert (tmp_path / "back/a/big").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "back/a/big").read_bytes() == data
    assert (tmp_path / "back/a/tree/link").readlink().name == "script"
    assert (tmp_path / "back/a/tree/script").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("box", ["nonroot"], indirect=True)
def test_point_33_what_the_user_may_not_the_calls_may_not(box: Sandbox, place: str) -> None:
    with pytest.raises(PathDeniedError, match="/no-right"):
        box.files.write("/no-right", b"x")
    box.files.write(f"{place}/file", b"x", mode=0o444)
    with pytest.raises(PathDeniedError, match=f"{place}/file"):
        box.files.write(f"{place}/file", b"y")
