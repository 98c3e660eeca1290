"""The image's own users, and files of them that are none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from daemon import (
    users,
)
from sandman.errors import (
    UserUnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
from tests.unit.daemon.harness import names_in


@pytest.fixture
def accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A passwd and a group file with oddities."""
    (tmp_path / "passwd").write_bytes(
        b"# comment\n\nroot:x:0:0:root:/root:/bin/bash\nann:x:1000:1000:A,,,:/home/ann:\n"
        b"short:x:1\nodd:x:many:1:::\nbig:x:4294967295:1:::\nno\xff:x:7:8::/h\xff:/bin/sh\n"
    )
    (tmp_path / "group").write_text(
        "root:x:0:\nann:x:1000:\ndocker:x:50:bob,ann\nbad:x:y:ann\ndocker2:x:50:ann\n"
    )
    monkeypatch.setattr(users, "PASSWD", str(tmp_path / "passwd"))
    monkeypatch.setattr(users, "GROUP", str(tmp_path / "group"))
    return iter(())


@pytest.mark.usefixtures("accounts")
def test_users() -> None:
    ann = users.User("ann", 1000, 1000, (1000, 50), "/home/ann", "")
    assert users.find("ann") == users.find(1000) == users.find("1000") == ann
    assert users.find("no\udcff").home == "/h\udcff"
    assert users.find("odd" if False else 4242) == users.User("4242", 4242, 0, (0,), "/", "")
    for wanted in ("odd", "big", "nobody", "", 2**32, str(2**32 - 1)):
        with pytest.raises(UserUnsupportedError):
            users.find(wanted)


def test_users_of_an_image_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "PASSWD", "/no/passwd")
    monkeypatch.setattr(users, "GROUP", "/no/group")
    assert users.find("root") == users.find(0) == users.User("root", 0, 0, (0,), "/root", "")


def test_files_of_users_that_are_none_hold_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A command may have put a FIFO there: to open it would wait for ever, beyond any timeout.
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr(users, "PASSWD", str(tmp_path / "fifo"))
    monkeypatch.setattr(users, "GROUP", "/dev/zero")
    assert users.find(7).name == "7"


def test_fuzzed_passwd_that_is_a_directory_holds_nobody_and_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(users, "PASSWD", str(tmp_path))
    before = names_in("/proc/self/fd")
    assert users.find(7).name == "7"
    assert len(names_in("/proc/self/fd")) == len(before)
