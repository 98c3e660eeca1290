"""`sandman keys` and `sandman signing-keys`, with a kubectl that keeps Secrets in a file as an API server does."""

from __future__ import annotations

import base64
import importlib
import json
import stat
import sys
import time
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from gateway import auth, callers, tokens
from gateway.model import Identity, Share
from sandman import apikeys, names, signing
from sandman.cli import main
from sandman.cli import signing as signing_cli
from sandman.errors import UnauthenticatedError
from sandman.service import keyring

KUBECTL = """#!{python} -IS
# Secrets of one namespace and a list of pods, in a file. A patch needs the version that is there.
import json, sys
state = json.load(open({store!r}))
arguments = sys.argv[1:]
state["calls"].append(arguments)
def leave(text=""):
    json.dump(state, open({store!r}, "w"))
    sys.exit(text or 0)
if "pods" in arguments:
    sys.stdout.write(state["pods"])
    leave()
name = arguments[arguments.index("secret") + 1]
secret = state["secrets"].get(name)
if secret is None:
    leave(f'Error from server (NotFound): secrets "{{name}}" not found')
if "patch" in arguments:
    patch = json.load(open(arguments[arguments.index("--patch-file") + 1]))
    if state["others"]:
        state["others"] -= 1
        secret["metadata"]["resourceVersion"] += "x"
    if patch["metadata"]["resourceVersion"] != secret["metadata"]["resourceVersion"]:
        leave("Error from server (Conflict): Operation cannot be fulfilled")
    data = secret.setdefault("data", {{}})
    for key, value in patch["data"].items():
        data.pop(key, None) if value is None else data.__setitem__(key, value)
    secret["metadata"]["resourceVersion"] += "1"
print(json.dumps(secret))
leave()
"""


class Bed(SimpleNamespace):
    """A kubectl, and what is behind it."""

    def run(self, *arguments: str, code: int = 0) -> SimpleNamespace:
        done = CliRunner().invoke(main, [*arguments])
        assert done.exit_code == code, done.output
        return SimpleNamespace(out=done.stdout, err=done.stderr)

    @property
    def state(self) -> dict:
        return json.loads(self.store.read_text())

    def change(self, **values) -> None:
        self.store.write_text(json.dumps(self.state | values))

    def data(self, name: str = names.API_KEYS_SECRET) -> dict[str, bytes]:
        found = self.state["secrets"][name].get("data") or {}
        return {key: base64.b64decode(value) for key, value in found.items()}

    def put(self, name: str, data: dict[str, bytes]) -> None:
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        secrets = self.state["secrets"]
        secrets[name] = {"metadata": {"name": name, "resourceVersion": "1"}, "data": encoded}
        self.change(secrets=secrets)

    def who(self, token: str, now: float | None = None):
        """Whom the gateway takes this token for, by what is in the Secret."""
        api_keys, bad = tokens.parse_api_keys(self.data())
        assert bad == []
        keys = SimpleNamespace(
            api_keys=api_keys, sandbox_keys={}, current_key="", callers=callers.NOBODY
        )
        return auth.authenticate(f"Bearer {token}", keys, time.time() if now is None else now)


@pytest.fixture
def bed(tmp_path, monkeypatch) -> Bed:
    store = tmp_path / "store.json"
    empty = {
        name: {"metadata": {"name": name, "resourceVersion": "1"}}
        for name in (names.API_KEYS_SECRET, names.KEYS_SECRET)
    }
    store.write_text(json.dumps({"secrets": empty, "pods": "", "calls": [], "others": 0}))
    script = tmp_path / "kubectl"
    script.write_text(KUBECTL.format(python=sys.executable, store=str(store)))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return Bed(store=store, folder=tmp_path)


# --- making ---


def test_a_key_that_was_made_is_taken_with_all_that_it_was_made_with(bed):
    said = bed.run(
        "keys", "new", "ci", "--tenant", "acme", "--weight", "3", "--concurrent", "8",
        "--rate", "0.5", "--cpu", "64", "--memory", "1Ti", "--images", "r.example/**",
        "--images", "debian", "--kubernetes-user", "alice", "--kubernetes-group", "dev",
        "--networks", "open", "--networks", "model",
    )  # fmt: skip
    token = said.out.strip()
    found = bed.who(token)
    assert (found.tenant, found.key_id) == ("acme", "ci")
    assert found.share == Share(
        3.0, 8, ("r.example/**", "debian"), 0.5, 64, 2**40, ("open", "model")
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
    bed.run("keys", "new", "ci", "--tenant", "acme", "--token-file", str(file), code=125)
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


def test_keys_are_listed_with_what_becomes_of_them(bed):
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


def test_a_rotated_key_has_two_tokens_for_a_while(bed):
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


def test_a_leaked_token_is_rotated_without_overlap(bed):
    old = bed.run("keys", "new", "ci", "--tenant", "acme").out.strip()
    file = bed.folder / "new"
    bed.run("keys", "rotate", "ci", "--overlap", "0s", "--token-file", str(file))
    with pytest.raises(UnauthenticatedError):
        bed.who(old, time.time() + 1)
    assert bed.who(file.read_text().strip()).tenant == "acme"


def test_revoked_keys_are_gone_and_a_slip_revokes_none(bed):
    for key in ("a", "b", "c"):
        bed.run("keys", "new", key, "--tenant", "acme")
    assert "no key x; there are: a, b, c" in bed.run("keys", "revoke", "a", "x", code=1).err
    assert set(bed.data()) == {"a", "b", "c"}
    assert "revoked: a, c" in bed.run("keys", "revoke", "a", "c").err
    assert set(bed.data()) == {"b"}
    bed.run("keys", "rotate", "a", code=1)


# --- signing keys ---

NOW = 1_800_000_000.0


def ring(current: str = "k1", *ids: str, **more: bytes) -> dict[str, bytes]:
    each = {key: key.encode() * 16 for key in ids or (current,)}
    return keyring.Keyring(current, each, each).to_data() | more


def pods(*made: tuple[str, float]) -> str:
    return (
        "".join(f"{key}\t{apikeys.moment(at)}\n" for key, at in made) + "\t2026-01-01T00:00:00Z\n"
    )


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """The time of day, and how long somebody slept."""
    one = SimpleNamespace(now=NOW, slept=[])
    # By its name: the package has the group `keys` in its place.
    for module in (importlib.import_module("sandman.cli.keys"), signing_cli):
        monkeypatch.setattr(module, "_now", lambda: one.now)
    monkeypatch.setattr(signing_cli, "_wait", one.slept.append)
    return one


def test_a_signing_key_is_known_to_all_before_it_is_used(bed, clock, monkeypatch):
    bed.put(names.KEYS_SECRET, ring())
    before: list[keyring.Keyring] = []
    monkeypatch.setattr(
        signing_cli,
        "_wait",
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
    monkeypatch.setattr(signing_cli, "_wait", lambda _span: bed.put(names.KEYS_SECRET, ring()))
    assert "not there whole" in bed.run("signing-keys", "rotate", "--id", "k2", code=1).err
    assert keyring.parse(bed.data(names.KEYS_SECRET)).current == "k1"
