"""The twins are one text."""

from __future__ import annotations

import importlib
import inspect

import pytest

from scripts import unasync

MODULES = ("client", "sandbox", "files", "stream")


def test_the_sync_twin_is_what_the_script_writes() -> None:
    stale = [path for path, text in unasync.outputs().items() if path.read_text() != text]
    assert stale == []


@pytest.mark.parametrize("module", MODULES)
def test_both_offer_the_same(module: str) -> None:
    def offers(side: str) -> dict[str, list[str]]:
        found = importlib.import_module(f"sandman.{side}.{module}")
        return {
            name: sorted(attribute for attribute in vars(kind) if not attribute.startswith("_"))
            for name, kind in vars(found).items()
            if inspect.isclass(kind) and kind.__module__ == found.__name__
        }

    awaited = {
        name: sorted("close" if attribute == "aclose" else attribute for attribute in attributes)
        for name, attributes in offers("_async").items()
    }
    assert awaited == offers("_sync")


def test_public_modules_offer_the_same() -> None:
    both = [importlib.import_module(f"sandman.{side}").__all__ for side in ("client", "sync")]
    assert both[0] == both[1]


@pytest.mark.parametrize("stale", [False, True])
def test_check_tells(stale: bool, tmp_path, monkeypatch, capsys) -> None:
    source = tmp_path / "a"
    source.mkdir()
    (source / "m.py").write_text("import anyio\n\n\nasync def f():\n    await anyio.sleep(1)\n")
    monkeypatch.setattr(unasync, "ROOT", tmp_path)
    monkeypatch.setattr(unasync, "PAIRS", (("a", "b"),))
    monkeypatch.setattr("sys.argv", ["unasync.py"])
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "gone.py").write_text("")
    assert unasync.main() == 0
    written = (tmp_path / "b" / "m.py").read_text()
    assert "    anyio.sleep(1)" in written
    assert "blocking as anyio" in written
    assert not (tmp_path / "b" / "gone.py").exists()
    if stale:
        (tmp_path / "b" / "m.py").write_text("other")
    monkeypatch.setattr("sys.argv", ["unasync.py", "--check"])
    assert unasync.main() == int(stale)
    assert ("b/m.py is stale" in capsys.readouterr().out) is stale
