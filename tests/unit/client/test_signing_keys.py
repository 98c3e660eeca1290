"""`sandman signing-keys`, with a kubectl that keeps Secrets in a file as an API server does."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace

import pytest

from sandman import apikeys, names, signing
from sandman.cli import signing as signing_cli
from sandman.service import keyring
from tests.unit.client.kubectl_bed import Bed, keys_cli, opened

NOW = 1_800_000_000.0


def ring(current: str = "k1", *ids: str, **more: bytes) -> dict[str, bytes]:
    each = {key: key.encode() * 16 for key in ids or (current,)}
    return keyring.Keyring(current, each, each).to_data() | more


def pods(*made: tuple[str, float]) -> str:
    return (
        "".join(f"{key}\t{apikeys.moment(at)}\n" for key, at in made) + "\t2026-01-01T00:00:00Z\n"
    )


@pytest.fixture
def bed(tmp_path, monkeypatch) -> Bed:
    return opened(tmp_path, monkeypatch)


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """The time of day, and how long somebody slept."""
    one = SimpleNamespace(now=NOW, slept=[])
    for module in (keys_cli, signing_cli):
        monkeypatch.setattr(module, "_now", lambda: one.now)
        monkeypatch.setattr(module, "wait", one.slept.append)
    return one


def test_a_signing_key_is_known_to_all_before_it_is_used(bed, clock, monkeypatch):
    bed.put(names.KEYS_SECRET, ring())
    before: list[keyring.Keyring] = []
    monkeypatch.setattr(
        signing_cli,
        "wait",
        lambda span: (
            before.append(keyring.parse(bed.data(names.KEYS_SECRET))) or clock.slept.append(span)
        ),
    )
    bed.run("signing-keys", "rotate", "--settle", "20s")
    [known] = before
    new = f"k{NOW:.0f}"
    assert (known.current, set(known.sandbox), clock.slept) == ("k1", {"k1", new}, [20.0])
    after = keyring.parse(bed.data(names.KEYS_SECRET))
    assert (after.current, set(after.daemon), set(after.sandbox)) == (new, {"k1", new}, {"k1", new})
    assert (
        len({*after.daemon.values(), *after.sandbox.values()}) == 3
    )  # both of the new one are its own
    assert bed.data(names.KEYS_SECRET)["retired-k1"] == apikeys.moment(NOW).encode()
    for call in bed.state["calls"]:
        assert not any(
            base64.b64encode(key).decode() in " ".join(call) for key in after.daemon.values()
        )


def test_a_rotation_that_was_cut_short_goes_on(bed, clock):
    bed.put(names.KEYS_SECRET, ring("k1", "k1", "k2"))
    bed.run("signing-keys", "rotate", "--id", "k2")
    assert keyring.parse(bed.data(names.KEYS_SECRET)).current == "k2"
    bed.run("signing-keys", "rotate", "--id", "k2")
    assert "retired-k2" not in bed.data(names.KEYS_SECRET)


@pytest.mark.parametrize(
    ("data", "key_id", "says"),
    [({}, "k2", "webhook makes the first"), (ring(), "NO", "key id"),
     (ring() | {"daemon-k2": b"short"}, "k2", "there is a key")],
)  # fmt: skip
def test_a_rotation_that_cannot_be_is_none(bed, clock, data, key_id, says):
    bed.put(names.KEYS_SECRET, data)
    assert says in bed.run("signing-keys", "rotate", "--id", key_id, code=1).err
    assert bed.data(names.KEYS_SECRET) == data


def test_a_key_stays_while_anything_of_its_time_lives(bed, clock):
    """A placeholder that nobody claimed, a sandbox, and what a lagging gateway signed just after."""
    retired = {"retired-k1": apikeys.moment(NOW).encode()}
    bed.put(names.KEYS_SECRET, ring("k2", "k1", "k2", **retired))
    for made in (("k1", NOW - 86400), ("k1", NOW + 60), ("k2", NOW + signing.LAG_S - 1)):
        bed.change(pods=pods(made, ("k2", NOW + 500)))
        assert "gone: none" in bed.run("signing-keys", "prune").err
        [current, old] = json.loads(bed.run("signing-keys", "list", "--json").out)
        assert (current["state"], old["state"], old["pods"]) == ("current", "needed", 1)
    bed.change(pods=pods(("k2", NOW + signing.LAG_S)))
    assert "would go: k1" in bed.run("signing-keys", "prune", "--dry-run").err
    assert "unused" in bed.run("signing-keys", "list").out
    assert "gone: k1" in bed.run("signing-keys", "prune").err
    assert bed.data(names.KEYS_SECRET) == ring("k2")


def test_a_key_that_was_changed_by_hand_is_retired_from_the_first_prune_on(bed, clock):
    bed.put(names.KEYS_SECRET, ring("k2", "k1", "k2"))
    bed.change(pods=pods(("k2", NOW - 10)))
    assert "not in use" in bed.run("signing-keys", "list").out
    assert "gone: none" in bed.run("signing-keys", "prune").err
    bed.change(pods=pods(("k2", NOW + 1000)))
    assert "gone: k1" in bed.run("signing-keys", "prune").err


def test_a_broken_entry_is_shown_and_the_current_key_never_goes(bed, clock):
    retired = {"retired-k1": b"nonsense", "daemon-k3": b"short", "retired-k3": b"nonsense"}
    bed.put(names.KEYS_SECRET, ring("k1", "k1", **retired))
    shown = {
        one["id"]: one["state"] for one in json.loads(bed.run("signing-keys", "list", "--json").out)
    }
    assert shown == {"k1": "current", "k3": "broken"}
    for _ in range(3):
        bed.run("signing-keys", "prune")
    assert keyring.parse(bed.data(names.KEYS_SECRET)).current == "k1"


def test_who_may_not_see_all_pods_takes_no_key_away(bed, clock):
    bed.put(names.KEYS_SECRET, ring("k2", "k1", "k2", **{"retired-k1": b"2020-01-01T00:00:00Z"}))
    bed.change(pods="k1\tno time\n")
    bed.run("signing-keys", "prune", code=1)
    assert "daemon-k1" in bed.data(names.KEYS_SECRET)


def test_a_key_that_went_meanwhile_is_not_made_current(bed, clock, monkeypatch):
    bed.put(names.KEYS_SECRET, ring())
    monkeypatch.setattr(signing_cli, "wait", lambda _span: bed.put(names.KEYS_SECRET, ring()))
    assert "not there whole" in bed.run("signing-keys", "rotate", "--id", "k2", code=1).err
    assert keyring.parse(bed.data(names.KEYS_SECRET)).current == "k1"
