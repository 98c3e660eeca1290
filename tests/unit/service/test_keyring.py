"""The Secret of signing keys as bytes: what is understood, and what is never thrown away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandman.service import keyring

DAEMON, SANDBOX = b"d" * 32, b"s" * 32
KEY_IDS = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,10}[a-z0-9])?", fullmatch=True)
KEYS = st.binary(min_size=32, max_size=32)


def secret(**entries: bytes) -> dict[str, bytes]:
    base = {"current": b"k1", "daemon-k1": DAEMON, "sandbox-k1": SANDBOX}
    return base | {name.replace("_", "-"): value for name, value in entries.items()}


def test_what_fresh_makes_is_what_parse_reads():
    made = keyring.fresh("k1", DAEMON, SANDBOX)
    assert made.to_data() == secret()
    assert keyring.parse(made.to_data()) == made


@given(current=KEY_IDS, other=KEY_IDS, keys=st.tuples(KEYS, KEYS, KEYS, KEYS))
def test_any_two_key_ids_survive_the_round_trip(current, other, keys):
    daemon = {other: keys[0], current: keys[1]}
    sandbox = {other: keys[2], current: keys[3]}
    made = keyring.Keyring(current, daemon, sandbox)
    assert keyring.parse(made.to_data()) == made


def test_an_operators_newline_behind_current_does_not_matter():
    assert keyring.parse(secret(current=b"k1\n")).current == "k1"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({}, "no usable entry 'current'"),
        (secret(current=b""), "no usable entry 'current'"),
        (secret(current=b"K_1"), "no usable entry 'current'"),
        (secret(current=b"\xff"), "no usable entry 'current'"),
        (secret(current=b"k2"), "'daemon-k2' is not 32 bytes"),
        (secret(daemon_k1=b"short"), "'daemon-k1' is not 32 bytes"),
        (secret(sandbox_k1=b""), "'sandbox-k1' is not 32 bytes"),
    ],
)
def test_without_a_whole_current_key_there_is_no_keyring(data, text):
    with pytest.raises(keyring.KeyringError, match=text):
        keyring.parse(data)


def test_a_slip_in_an_old_entry_costs_that_key_alone():
    parsed = keyring.parse(secret(daemon_k0=b"x", sandbox_k0=SANDBOX, other=b"y"))
    assert dict(parsed.daemon) == {"k1": DAEMON}
    assert dict(parsed.sandbox) == {"k1": SANDBOX, "k0": SANDBOX}


def test_completing_keeps_everything_that_was_there():
    spoilt = {"current": b"gone", "daemon-k0": b"?", "sandbox-k0": SANDBOX, "note": b"n"}
    data = keyring.completed(spoilt, keyring.fresh("k1", DAEMON, SANDBOX))
    assert data == {**spoilt, **secret()}
    assert keyring.parse(data).current == "k1"


@pytest.mark.parametrize("key_id", ["", "-a", "a-", "A", "a b", "a" * 41])
def test_a_key_id_must_fit_a_secrets_key(key_id):
    with pytest.raises(keyring.KeyringError, match="cannot be a key id"):
        keyring.fresh(key_id, DAEMON, SANDBOX)


def test_a_key_has_32_bytes():
    with pytest.raises(keyring.KeyringError, match="32 bytes"):
        keyring.fresh("k", DAEMON, b"short")


def test_no_key_shows_in_the_repr():
    assert repr(keyring.fresh("k1", DAEMON, SANDBOX)) == "Keyring(current='k1')"
