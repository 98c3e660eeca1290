"""`sandman verify`: what was signed, what was not, and what to do without the library."""

from __future__ import annotations

import base64
import builtins
import json
from typing import Any

import pytest

from sandman import certificates
from tests.unit.client.fake_gateway import answer

SEED = b"s" * 32
PUBLIC = certificates.public_key(SEED)
KEYS = json.dumps(certificates.keys_to_json([PUBLIC]))


def signed(verdict: str = "controlled", **more: Any) -> certificates.Certificate:
    document = {
        "format": 1, "sandbox": "box-1", "issued_at": "2026-11-30T12:00:00.000Z", "verdict": verdict,
        "reasons": [], "commands": [], **more,
    }  # fmt: skip
    return certificates.sign(document, SEED)


UNCONTROLLED = signed("uncontrolled", reasons=[{"code": "qos", "detail": "BestEffort"}])


def tampered() -> dict[str, Any]:
    envelope = UNCONTROLLED.to_json()
    changed = UNCONTROLLED.payload.replace(b"uncontrolled", b"controlled")
    return {**envelope, "payload": base64.b64encode(changed).decode()}


@pytest.fixture
def keys(tmp_path) -> str:
    (tmp_path / "keys.json").write_text(KEYS)
    return str(tmp_path / "keys.json")


@pytest.fixture
def kept(tmp_path):
    def keep(*found: object) -> str:
        path = tmp_path / "report.jsonl"
        path.write_text("".join(f"{json.dumps(one)}\n" for one in found))
        return str(path)

    return keep


def test_one_that_was_signed(cli, gateway, keys, kept):
    got = cli("verify", "--json", "--keys", keys, kept(signed().to_json()))
    assert got.exit_code == 0, got.stderr
    [row] = json.loads(got.stdout)
    assert (row["sandbox"], row["signature"], row["verdict"], row["reasons"]) == (
        "box-1", "good", "controlled", [],
    )  # fmt: skip
    # Offline: nobody was asked.
    assert gateway.calls() == []


def test_one_that_was_changed_fails_and_says_so(cli, keys, kept):
    got = cli("verify", "--json", "--keys", keys, kept(tampered(), signed().to_json()))
    assert got.exit_code == 1
    first, second = json.loads(got.stdout)
    assert (first["signature"], first["verdict"]) == ("not verified: tampered", None)
    assert second["signature"] == "good"


def test_of_another_key_and_of_no_certificate(cli, keys, kept, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(json.dumps(certificates.keys_to_json([certificates.public_key(b"o" * 32)])))
    got = cli("verify", "--json", "--keys", other, kept(signed().to_json(), "x", {}))
    assert [row["signature"] for row in json.loads(got.stdout)] == [
        "not verified: key", "malformed", "not verified: type",
    ]  # fmt: skip
    assert got.exit_code == 1
    (tmp_path / "odd").write_text("certificate\n\n")
    got = cli("verify", "--json", "--keys", keys, tmp_path / "odd")
    assert [row["signature"] for row in json.loads(got.stdout)] == ["malformed"]


def test_records_of_a_report_and_those_without(cli, keys, kept):
    report = kept({"task": "a", "certificate": UNCONTROLLED.to_json()}, {"certificate": None})
    got = cli("verify", "--keys", keys, report)
    assert got.exit_code == 0
    assert "qos: BestEffort" in got.stdout
    assert "the record has no certificate" in got.stdout
    assert cli("verify", "--controlled", "--keys", keys, report).exit_code == 1
    without = kept({"certificate": None}, {"certificate": None})
    assert cli("verify", "--controlled", "--keys", keys, without).exit_code == 1
    assert cli("verify", "--keys", keys, without).exit_code == 1
    assert cli("verify", "--keys", keys, kept()).exit_code == 1
    assert "malformed" in cli("verify", "--json", "--keys", keys, kept({"certificate": ""})).stdout
    assert cli("verify", "--controlled", "--keys", keys, kept(signed().to_json())).exit_code == 0


def test_keys_come_from_the_gateway_and_can_be_kept(cli, gateway, kept, tmp_path):
    gateway.plan("GET /v1/certificate-keys", answer(200, KEYS.encode()))
    saved = tmp_path / "saved.json"
    assert cli("verify", "--save-keys", saved).exit_code == 0
    assert saved.read_text().strip() == KEYS
    gateway.plan("GET /v1/certificate-keys", answer(200, KEYS.encode()))
    assert cli("verify", kept(signed().to_json())).exit_code == 0


def test_what_to_name(cli, kept, tmp_path):
    assert cli("verify").exit_code == 2
    (tmp_path / "broken").write_text("[]")
    got = cli("verify", "--keys", tmp_path / "broken", kept(signed().to_json()))
    assert (got.exit_code, "a set of keys" in got.stderr) == (1, True)


def test_without_the_library_it_is_said_what_to_install(cli, keys, kept, monkeypatch):
    real = builtins.__import__

    def without(name: str, *rest: Any) -> object:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *rest)

    report = kept(signed().to_json())
    monkeypatch.setattr(builtins, "__import__", without)
    got = cli("verify", "--keys", keys, report)
    assert got.exit_code == 1
    assert "pip install 'sandman-sandbox[verify]'" in got.stderr
