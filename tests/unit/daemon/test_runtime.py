"""The build of the daemon's runtime: the parts that decide, without compiling anything."""

import tarfile
from pathlib import Path

import pytest

from daemon.runtime import image, library, recipe, sources, toolchain, tree
from daemon.runtime.shell import BuildError
from daemon.runtime.sources import Entry, Mirrors

ARCHIVE = "http://mirror.example/debian"
SECURITY = "http://mirror.example/debian-security"

DEB822 = f"""\
# a comment before a stanza
Types: deb
# a comment within
URIs: {ARCHIVE}
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: {SECURITY}
Suites: bookworm-security
Components: main contrib
"""


def test_stanzas_are_read_with_comments_and_several_suites() -> None:
    assert list(sources.parse_stanzas(DEB822)) == [
        Entry((ARCHIVE,), ("bookworm", "bookworm-updates"), ("main",)),
        Entry((SECURITY,), ("bookworm-security",), ("main", "contrib")),
    ]


def test_a_disabled_stanza_is_no_source() -> None:
    (entry,) = sources.parse_stanzas(f"Enabled: no\n{DEB822}")
    assert entry.uris == (SECURITY,)


def test_values_may_continue_on_further_lines() -> None:
    (entry,) = sources.parse_stanzas(f"URIs: {ARCHIVE}\nSuites:\n bookworm\n trixie\n")
    assert entry.suites == ("bookworm", "trixie")


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        (f"deb {ARCHIVE} bookworm main", Entry((ARCHIVE,), ("bookworm",), ("main",))),
        (
            f"deb [arch=amd64 signed-by=/k.gpg] {ARCHIVE} bookworm main contrib # note",
            Entry((ARCHIVE,), ("bookworm",), ("main", "contrib")),
        ),
        (f"  deb-src\t{ARCHIVE}  bookworm  main", Entry((ARCHIVE,), ("bookworm",), ("main",))),
    ],
)
def test_one_line_entries(line: str, entry: Entry) -> None:
    assert list(sources.parse_lines(line)) == [entry]


@pytest.mark.parametrize("line", ["", "# deb http://mirror.example/debian bookworm main"])
def test_what_is_no_entry(line: str) -> None:
    assert list(sources.parse_lines(line)) == []


def test_other_vendors_with_the_same_suite_are_not_debian() -> None:
    vendor = Entry(("http://vendor.example/debian",), ("bookworm",), ("stable",))
    entries = [vendor, *sources.parse_stanzas(DEB822)]
    assert sources.choose_mirrors(entries, "bookworm") == Mirrors(ARCHIVE, SECURITY)


def test_a_machine_without_debian_is_told_so() -> None:
    with pytest.raises(BuildError, match="no mirror of Debian noble"):
        sources.choose_mirrors(list(sources.parse_stanzas(DEB822)), "noble")


def test_both_kinds_of_file_are_found(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(f"deb {ARCHIVE} bookworm main\n")
    stanza = DEB822.split("\n\n")[1]
    (tmp_path / "sources.list.d" / "debian.sources").write_text(stanza)
    (tmp_path / "os-release").write_text('ID=debian\nVERSION_CODENAME="bookworm"\n')
    found = sources.machine_mirrors(tmp_path, tmp_path / "os-release")
    assert found == Mirrors(ARCHIVE, SECURITY)


def test_the_private_list_asks_for_signed_sources_of_the_chosen_release_only() -> None:
    text = sources.source_list(Mirrors(ARCHIVE, SECURITY))
    entries = list(sources.parse_stanzas(text))
    assert [e.suites for e in entries] == [("trixie", "trixie-updates"), ("trixie-security",)]
    assert text.count("Types: deb-src\n") == text.count(f"Signed-By: {sources.KEYRING}\n") == 2
    assert "trusted" not in text.lower()


def test_a_machine_without_security_mirror_still_builds() -> None:
    assert len(list(sources.parse_stanzas(sources.source_list(Mirrors(ARCHIVE, None))))) == 1


def test_the_identity_follows_content_name_and_machine(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("ab")
    two.write_text("c")
    before = recipe.identity([one, two], "x86_64")
    assert recipe.identity([one, two], "x86_64") == before
    assert recipe.identity([one, two], "aarch64") != before
    one.write_text("a")
    two.write_text("bc")
    assert recipe.identity([one, two], "x86_64") != before


def test_a_comment_does_not_cost_a_compile(tmp_path: Path) -> None:
    recipe_file, header = tmp_path / "recipe.py", tmp_path / "compat.h"
    recipe_file.write_text("# why\n\nA = 1  # kept\n")
    header.write_text("# define A\n")
    before = recipe.identity([recipe_file, header], "x86_64")
    recipe_file.write_text("A = 1  # kept\n    # another reason\n")
    assert recipe.identity([recipe_file, header], "x86_64") == before
    header.write_text("# define B\n")
    assert recipe.identity([recipe_file, header], "x86_64") != before


def test_the_identity_covers_our_c_sources_and_the_way_of_building() -> None:
    names = {file.name for file in recipe.ingredients()}
    long = {"recipe.py", "cpython.py", "training.py", "compat.h"}
    assert long | {"interpreter.py", "_sandman.c", "start.c", "native.h"} <= names


def test_a_change_to_our_c_sources_does_not_cost_a_compile_of_cpython() -> None:
    names = {file.name for file in recipe.cpython_ingredients()}
    assert names == {"recipe.py", "cpython.py", "training.py", "compat.h"}
    assert {file.name for file in recipe.native_sources()} >= {"main.c", "_sandman.c"}


SOURCE = """
import os, json as j
from collections import abc
from typing import TYPE_CHECKING
import typing
if TYPE_CHECKING:
    import never
else:
    import otherwise
if typing.TYPE_CHECKING:
    from never.either import x
def late():
    import xml.dom
    from . import relative
"""


def test_imports_are_found_in_functions_but_not_under_type_checking() -> None:
    names = library.imported_names(SOURCE)
    assert names.modules == {"os", "json", "collections", "typing", "otherwise", "xml.dom"}
    assert names.possible == {"collections.abc", "typing.TYPE_CHECKING"}


@pytest.mark.parametrize(
    ("file", "name"),
    [("a/b.py", "a.b"), ("a/__init__.py", "a"), ("a/__main__.py", "a.__main__"), ("c.py", "c")],
)
def test_module_names(tmp_path: Path, file: str, name: str) -> None:
    assert library.module_name(tmp_path, tmp_path / file) == name


def test_the_build_and_tests_are_not_shipped(tmp_path: Path) -> None:
    for name in ("__main__.py", "http1.py", "runtime/build.py", "tests/test_x.py", "sub/a.py"):
        (tmp_path / "daemon" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "daemon" / name).touch()
    shipped = [str(file) for file in tree.daemon_sources(tmp_path)]
    assert shipped == ["daemon/__main__.py", "daemon/http1.py", "daemon/sub/a.py"]


def test_only_the_contract_of_the_shared_package_is_shipped(tmp_path: Path) -> None:
    (tmp_path / "sandman").mkdir()
    for name in ("__init__", "wire", "client"):
        (tmp_path / "sandman" / f"{name}.py").touch()
    shipped = [str(file) for file in tree.shared_sources(tmp_path)]
    assert shipped == ["sandman/__init__.py", "sandman/wire.py"]


def test_nothing_but_a_runtime_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "partial").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").touch()
    with pytest.raises(BuildError, match="not a runtime"):
        tree.replace(tmp_path / "partial", tmp_path / "out")
    assert (tmp_path / "out" / "precious").exists()


@pytest.mark.parametrize(
    ("name", "kind", "mode"),
    [
        ("python/bin/python3", tarfile.REGTYPE, 0o755),
        ("python/lib", tarfile.DIRTYPE, 0o755),
        ("python/lib/os.pyc", tarfile.REGTYPE, 0o644),
    ],
)
def test_tar_members_tell_nothing_of_the_builder(name: str, kind: bytes, mode: int) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.uid, member.uname, member.mtime = kind, 1000, "builder", 99.5
    done = toolchain.normal(member)
    assert (done.mode, done.uid, done.uname, done.mtime) == (mode, 0, "root", 0)


@pytest.mark.parametrize(
    ("reference", "local"),
    [
        ("127.0.0.1:5000/sandman/daemon:1", True),
        ("docker://localhost:5000/x", True),
        ("127.0.0.1.example/x", False),
        ("registry.example/127.0.0.1:5000/x", False),
        ("localhost.example:5000/x", False),
    ],
)
def test_plain_http_is_for_this_machine_only(reference: str, local: bool) -> None:
    assert image.is_loopback(reference) is local
