"""`sandman keys`, with a kubectl that keeps Secrets in a file as an API server does."""

from __future__ import annotations

import json
import stat
import time

import pytest

from gateway.model import Identity, Share
from sandman import names
from sandman.errors import UnauthenticatedError
from tests.unit.client.kubectl_bed import Bed, keys_cli, opened


@pytest.fixture
def bed(tmp_path, monkeypatch) -> Bed:
    return opened(tmp_path, monkeypatch)


# --- making ---


def test_a_key_that_was_made_is_taken_with_all_that_it_was_made_with(bed):
    said = bed.run(
        "keys", "new", "ci", "--tenant", "acme", "--weight", "3", "--concurrent", "8", "--eval-reserved", "3",
        "--rate", "0.5", "--cpu", "64", "--memory", "1Ti", "--images", "r.example/**",
        "--images", "debian", "--kubernetes-user", "alice", "--kubernetes-group", "dev",
        "--networks", "open", "--networks", "model",
    )  # fmt: skip
    token = said.out.strip()
    found = bed.who(token)
    assert (found.tenant, found.key_id) == ("acme", "ci")
    assert found.share == Share(
        3.0, 8, ("r.example/**", "debian"), 0.5, 64, 2**40, ("open", "model"), 3
    )  # fmt: skip
    assert found.identity == Identity("alice", ("dev",))
    assert "within seconds" in said.err
    assert token not in bed.store.read_text()  # its hash alone left this process


def test_a_key_has_an_end(bed):
    token = bed.run("keys", "new", "ci", "--tenant", "acme", "--expires", "90d").out.strip()
    assert bed.who(token, time.time() + 89 * 86400).tenant == "acme"
    with pytest.raises(UnauthenticatedError, match="expired"):
        bed.who(token, time.time() + 91 * 86400)


def test_offline_makes_a_secret_for_a_repository_and_a_file_for_its_owner(bed):
    file = bed.folder / "ci.token"
    said = bed.run(
        "keys", "new", "ci", "--tenant", "acme", "--offline", "--token-file", str(file)
    )  # fmt: skip
    assert bed.state["calls"] == []
    token = file.read_text().strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token not in said.out + said.err
    manifest = json.loads(said.out)
    assert manifest["metadata"] == {
        "name": names.API_KEYS_SECRET,
        "namespace": names.SYSTEM_NAMESPACE,
    }
    bed.put(
        names.API_KEYS_SECRET, {key: raw.encode() for key, raw in manifest["stringData"].items()}
    )
    assert bed.who(token).tenant == "acme"


def test_a_token_goes_to_no_file_that_is_there(bed):
    file = bed.folder / "taken"
    file.write_text("mine")
    bed.run("keys", "new", "ci", "--tenant", "acme", "--token-file", str(file), code=1)
    assert (file.read_text(), bed.data()) == ("mine", {})


def test_a_token_whose_key_is_not_installed_is_nowhere(bed):
    bed.run("keys", "new", "ci", "--tenant", "acme")
    file = bed.folder / "second"
    said = bed.run("keys", "new", "ci", "--tenant", "acme", "--token-file", str(file), code=1)
    assert "rotate or revoke it" in said.err
    assert not file.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["UPPER", "--tenant", "acme"], 1, "key id"),
        (["ci", "--tenant", "no label!"], 1, "tenant"),
        (["ci", "--tenant", "acme", "--weight", "0"], 1, "weight"),
        (["ci", "--tenant", "acme", "--concurrent", "0"], 1, "concurrent"),
        (["ci", "--tenant", "acme", "--rate", "0"], 1, "rate"),
        (["ci", "--tenant", "acme", "--images", "*"], 1, "pattern"),
        (["ci", "--tenant", "acme", "--networks", "a b"], 1, "egress profiles"),
        (["ci", "--tenant", "acme", "--kubernetes-group", "g"], 1, "kubernetes-user"),
        (["ci", "--tenant", "acme", "--expires", "soon"], 2, "length of time"),
        (["ci", "--tenant", "acme", "--memory", "0"], 2, "amount of memory"),
        (["ci", "--tenant", "acme", "--memory", "1Q"], 2, "amount of memory"),
        (["ci", "--tenant", "acme", "--offline"], 2, "--token-file"),
        (["ci"], 2, "tenant"),
    ],
)
def test_what_no_key_can_have_is_refused_before_anything_is_written(bed, arguments, code, says):
    assert says in bed.run("keys", "new", *arguments, code=code).err
    assert bed.data() == {}


def test_two_who_write_at_once_both_get_their_key(bed):
    bed.change(others=2)
    bed.run("keys", "new", "ci", "--tenant", "acme")
    assert set(bed.data()) == {"ci"}
    bed.change(others=99)
    assert "(Conflict)" in bed.run("keys", "new", "two", "--tenant", "acme", code=1).err


def test_kubectl_says_what_is_wrong(bed):
    bed.change(secrets={})
    assert "NotFound" in bed.run("keys", "list", code=1).err
    bed.change(secrets={names.API_KEYS_SECRET: {"metadata": {}, "data": {"a": "AA=="}}})
    assert "makes no sense" in bed.run("keys", "list", code=1).err


def test_the_context_and_the_namespace_are_kubectls(bed):
    bed.run("keys", "list", "--context", "prod", "-n", "elsewhere")
    assert bed.state["calls"] == [
        [
            "--context",
            "prod",
            "get",
            "-n",
            "elsewhere",
            "secret",
            names.API_KEYS_SECRET,
            "-o",
            "json",
        ]
    ]


# --- listing, rotating, revoking ---


def test_keys_are_listed_with_what_becomes_of_them(bed, no_wait):
    bed.run("keys", "new", "good", "--tenant", "acme", "--concurrent", "8")
    bed.run("keys", "new", "rotated", "--tenant", "acme")
    bed.run("keys", "rotate", "rotated", "--overlap", "2h")
    bed.run("keys", "new", "over", "--tenant", "acme", "--expires", "0s")
    data = bed.data()
    bed.put(names.API_KEYS_SECRET, {**data, "bad": b"{", "odd": b"[]", "none": b'{"tenant": "a"}'})
    shown = {one["id"]: one for one in json.loads(bed.run("keys", "list", "--json").out)}
    assert {key: one["state"].split(" ")[0] for key, one in shown.items()} == {
        "good": "good", "rotated": "rotating", "over": "expired",
        "bad": "unreadable", "odd": "unreadable", "none": "unreadable",
    }  # fmt: skip
    assert (shown["good"]["tenant"], shown["good"]["concurrent"]) == ("acme", 8)
    table = bed.run("keys", "list").out
    for raw in data.values():
        assert json.loads(raw)["sha256"] not in table


@pytest.fixture
def no_wait(monkeypatch) -> list[float]:
    """What was waited for."""
    waited: list[float] = []
    monkeypatch.setattr(keys_cli, "wait", waited.append)
    return waited


def test_a_new_token_is_told_when_all_gateways_know_it(bed, monkeypatch):
    old = bed.run("keys", "new", "ci", "--tenant", "acme").out.strip()
    known: list[tuple[object, ...]] = []

    def waited(seconds: float) -> None:
        known.append((seconds, bed.who(old).tenant, "previous" in json.loads(bed.data()["ci"])))

    monkeypatch.setattr(keys_cli, "wait", waited)
    new = bed.run("keys", "rotate", "ci", "--settle", "7s").out.strip()
    assert known == [(7.0, "acme", True)]
    assert bed.who(new).tenant == "acme"


@pytest.mark.parametrize("to_file", [False, True])
def test_who_does_not_wait_gets_the_token_all_the_same(bed, monkeypatch, to_file):
    """Else another rotation would take the place of the token that callers have."""
    bed.run("keys", "new", "ci", "--tenant", "acme")

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(keys_cli, "wait", interrupted)
    file = bed.folder / "new"
    told = bed.run(
        "keys", "rotate", "ci", *(["--token-file", str(file)] if to_file else []), code=130
    )
    token = (file.read_text() if to_file else told.out).strip()
    assert bed.who(token).tenant == "acme"


def test_a_rotated_key_has_two_tokens_for_a_while(bed, no_wait):
    old = bed.run("keys", "new", "ci", "--tenant", "acme", "--concurrent", "8").out.strip()
    said = bed.run("keys", "rotate", "ci", "--overlap", "2h")
    new = said.out.strip()
    assert "old token is good until" in said.err
    now = time.time()
    for token in (old, new):
        assert bed.who(token, now + 7000).share.concurrent == 8
    assert bed.who(new, now + 7300).tenant == "acme"
    with pytest.raises(UnauthenticatedError):
        bed.who(old, now + 7300)
    # Twice within the overlap: two are good, never three.
    newest = bed.run("keys", "rotate", "ci", "--expires", "1d").out.strip()
    for token in (new, newest):
        assert bed.who(token, now + 10).tenant == "acme"
    with pytest.raises(UnauthenticatedError):
        bed.who(old, now + 10)
    with pytest.raises(UnauthenticatedError, match="expired"):
        bed.who(newest, now + 2 * 86400)


def test_a_leaked_token_is_rotated_without_overlap(bed, no_wait):
    old = bed.run("keys", "new", "ci", "--tenant", "acme").out.strip()
    file = bed.folder / "new"
    bed.run("keys", "rotate", "ci", "--overlap", "0s", "--token-file", str(file))
    with pytest.raises(UnauthenticatedError):
        bed.who(old, time.time() + 1)
    assert bed.who(file.read_text().strip()).tenant == "acme"
    assert no_wait == []


def test_revoked_keys_are_gone_and_a_slip_revokes_none(bed):
    for key in ("a", "b", "c"):
        bed.run("keys", "new", key, "--tenant", "acme")
    assert "no key x; there are: a, b, c" in bed.run("keys", "revoke", "a", "x", code=1).err
    assert set(bed.data()) == {"a", "b", "c"}
    assert "revoked: a, c" in bed.run("keys", "revoke", "a", "c").err
    assert set(bed.data()) == {"b"}
    bed.run("keys", "rotate", "a", code=1)
