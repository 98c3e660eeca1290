"""Settings from the environment, the command line, the janitor."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import trio

from gateway import __main__ as program
from gateway import cluster, config, janitor, tokens
from gateway.config import PREFIX, SettingError, Settings
from gateway.janitor import Janitor
from gateway.model import Share
from gateway.profiles import Enforcement
from sandman.probes import Target
from sandman.version import __version__

# --- settings ---


def test_without_variables_the_defaults_hold_and_others_variables_are_none_of_ours():
    assert Settings.from_env({"PATH": "/bin", "SANDMAN_TOKEN": "x"}) == Settings()


def test_each_type_is_read():
    read = Settings.from_env(
        {
            PREFIX + "PORT": "1234", PREFIX + "GRACE_S": "1.5", PREFIX + "POD_NAME": "gw-0",
            PREFIX + "SANDBOX_NAMESPACES": "a, b,,", PREFIX + "NETWORK_ENFORCEMENT": "require",
            PREFIX + "NETWORK_CLOSED": "169.254.169.254:80, [fd00::1]:443",
        }
    )  # fmt: skip
    assert read.network_enforcement is Enforcement.REQUIRE
    assert read.network_closed == (Target("169.254.169.254", 80), Target("fd00::1", 443))
    assert (read.port, read.grace_s, read.pod_name, read.sandbox_namespaces) == (
        1234, 1.5, "gw-0", ("a", "b"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"),
    [("PORT", "https"), ("PORT", "1.5"), ("PORT", "-1"), ("PORT", "tcp://10.0.0.1:8443"),
     ("GRACE_S", "nan"), ("GRACE_S", "soon"), ("POD_NAME", ""), ("SANDBOX_NAMESPACES", " , "),
     ("NETWORK_ENFORCEMENT", "maybe"), ("NETWORK_CLOSED", "metadata:80"), ("NETWORK_CLOSED", "10.0.0.1")],
)  # fmt: skip
def test_a_bad_value_names_its_variable(name, text):
    with pytest.raises(SettingError, match=PREFIX + name):
        Settings.from_env({PREFIX + name: text})


def test_a_misspelt_setting_is_refused_and_the_known_are_told():
    with pytest.raises(SettingError, match=r"PROT is not a setting.*SANDMAN_GATEWAY_PORT"):
        Settings.from_env({PREFIX + "PROT": "1"})


def test_every_setting_has_a_type_that_can_be_read():
    types = {str(field.type) for field in dataclasses.fields(Settings)}
    assert types <= set(config._READERS)


# --- the command line ---


def test_a_key_that_was_made_is_accepted_once_its_patch_is_applied(capsys):
    images = ["--images", "debian", "--images", "r.example/**", "--networks", "open"]
    assert program.main(["make-key", "ci-1", "--tenant", "acme", *images]) == 0
    said = capsys.readouterr().out
    token = said.splitlines()[0].rpartition(" ")[2]
    patch = json.loads(said[said.index("-p '") + 4 : said.rindex("'")])
    keys, bad = tokens.parse_api_keys(
        {name: base64.b64decode(value) for name, value in patch["data"].items()}
    )
    assert bad == []
    assert tokens.check_api_key(token, keys, 0.0).tenant == "acme"
    assert keys["ci-1"].share.images == ("debian", "r.example/**")
    assert keys["ci-1"].share.networks == ("open",)
    assert token not in json.dumps(patch)


def test_a_key_can_say_whom_the_cluster_knows_its_caller_as(capsys):
    options = ["--kubernetes-user", "alice", "--kubernetes-group", "dev"]
    assert program.main(["make-key", "ci-1", "--tenant", "acme", *options]) == 0
    said = capsys.readouterr().out
    patch = json.loads(said[said.index("-p '") + 4 : said.rindex("'")])
    entry = json.loads(base64.b64decode(patch["data"]["ci-1"]))
    assert entry["kubernetes"] == {"user": "alice", "groups": ["dev"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["make-key", "UPPER", "--tenant", "acme"], "UPPER"),
     (["make-key", "k", "--tenant", "a b"], "a b"),
     (["make-key", "k", "--tenant", "t", "--weight", "0"], "0.01 to 100"),
     (["make-key", "k", "--tenant", "t", "--images", "*"], "image pattern"),
     (["make-key", "k", "--tenant", "t", "--concurrent", "0"], "at least 1"),
     (["make-key", "k", "--tenant", "t", "--rate", "0"], "rate is a number"),
     (["make-key", "k", "--tenant", "t", "--kubernetes-user", ""], "not empty"),
     (["make-key", "k", "--tenant", "t", "--kubernetes-group", "g"], "needs a --kubernetes-user")],
)  # fmt: skip
def test_a_key_that_cannot_be_is_refused(capsys, arguments, words):
    assert program.main(arguments) == 2
    assert words in capsys.readouterr().err


def test_limits_of_a_tenant_are_put_into_its_key(capsys):
    arguments = [
        "--concurrent",
        "8",
        "--eval-reserved",
        "2",
        "--rate",
        "2.5",
        "--cpu",
        "16",
        "--memory",
        "64Gi",
    ]
    assert program.main(["make-key", "k", "--tenant", "t", *arguments]) == 0
    patch = json.loads(capsys.readouterr().out.rsplit("-p '", 1)[1].strip().strip("'"))
    keys, bad = tokens.parse_api_keys({"k": base64.b64decode(patch["data"]["k"])})
    assert (keys["k"].share, bad) == (
        Share(1.0, 8, rate=2.5, cpu=16.0, memory=64 * 2**30, eval_reserved=2),
        [],
    )


def test_an_amount_of_memory_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit):
        program.main(["make-key", "k", "--tenant", "t", "--memory", "plenty"])
    assert "64Gi" in capsys.readouterr().err


def test_a_bad_setting_ends_the_program_before_it_serves(capsys, monkeypatch):
    monkeypatch.setenv(PREFIX + "PORT", "https")
    assert program.main(["serve"]) == 2
    assert capsys.readouterr().err.startswith("gateway: setting: SANDMAN_GATEWAY_PORT")


def test_a_bad_log_level_is_told(capsys, monkeypatch):
    monkeypatch.setenv(PREFIX + "LOG_LEVEL", "loud")
    assert program.main([]) == 2
    assert "loud" in capsys.readouterr().err


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit, match="0"):
        program.main(["--version"])
    assert capsys.readouterr().out.strip() == __version__


def test_it_serves_by_default_with_the_settings_of_the_environment(monkeypatch):
    served = []

    async def main(settings) -> None:
        await trio.lowlevel.checkpoint()
        served.append(settings)

    monkeypatch.setattr(program.serve, "main", main)
    monkeypatch.setenv(PREFIX + "POD_NAME", "gw-7")
    assert program.main([]) == 0
    assert served[0].pod_name == "gw-7"


def test_the_module_is_a_program():
    run = subprocess.run(
        [sys.executable, "-m", "gateway", "make-key", "k", "--tenant", "t"],
        capture_output=True, check=False, timeout=60, env=os.environ,
    )  # fmt: skip
    assert run.returncode == 0
    assert run.stdout.startswith(b"token (shown once): smk_k_")


# --- the janitor ---


async def test_the_janitor_goes_round_for_ever(autojump_clock):
    alive, rounds = {"u1"}, []
    registry = SimpleNamespace(get=lambda uid: uid if uid in alive else None, all=list)
    proxy = SimpleNamespace(forget_ended=lambda: rounds.append(trio.current_time()))

    async def close_unused(is_alive) -> None:
        await trio.lowlevel.checkpoint()
        rounds.append((is_alive("u1"), is_alive("u2")))

    begun = trio.current_time()
    cleaner = Janitor(
        registry, SimpleNamespace(close_unused=close_unused), proxy, None,
        is_leader=lambda: True, retain_s=600.0, wall=trio.current_time,
    )  # fmt: skip
    with trio.move_on_after(2.5 * janitor.EVERY_S):
        await cleaner.run()
    assert rounds == [
        begun + janitor.EVERY_S, (True, False), begun + 2 * janitor.EVERY_S, (True, False),
    ]  # fmt: skip


def test_what_no_profile_opens_is_known_by_its_address():
    settings = Settings(pod_ip="10.1.0.5", port=8443)
    assert cluster.closed_by_all(settings, "https://10.96.0.1:443") == {
        Target("10.96.0.1", 443): "the API server", Target("10.1.0.5", 8443): "a gateway",
    }  # fmt: skip
    six = cluster.closed_by_all(Settings(pod_ip="fd00::5"), "https://[fd00::1]")
    assert Target("fd00::1", 443) in six
    assert Target("fd00::5", 8443) in six
    # A name is nothing that a sandbox could look up.
    named = cluster.closed_by_all(settings, "https://api.cluster.example:6443")
    assert list(named.values()) == ["a gateway"]
