"""Callers of every kind on the real cluster: ServiceAccounts by TokenReview, JWTs, keys made and revoked by the command
line. Rotations are in test_rotation."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

import pytest

import sandman as sdk
from gateway.failures import BURST
from sandman import names
from tests.cluster.bed import kubectl, model
from tests.cluster.bed.shell import wait_until
from tests.cluster.calling import SLOW_S, cli, client_of, replicas, soon, status, write_rules
from tests.fakes.issuers import Signer, entry, keyset, said_by_default

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

NAMESPACE = "sandman-test-callers"
ACCOUNT = {"namespace": NAMESPACE, "name": "trainer", "tenant": "demo"}


@pytest.fixture(autouse=True)
def nothing_is_left(sandman) -> Iterator[None]:
    yield
    sandman.wait_nothing_leased(60)


@pytest.fixture
def rules(sandman) -> Iterator[None]:
    """A ServiceAccount and an issuer that are tenants, for one test."""
    kubectl(sandman.bed, "create", "namespace", NAMESPACE)
    try:
        kubectl(sandman.bed, "-n", NAMESPACE, "create", "serviceaccount", "trainer")
        yield
        write_rules(sandman)
    finally:
        kubectl(sandman.bed, "delete", "namespace", NAMESPACE, "--wait=true")


def account_token(sandman, *audience: str) -> str:
    arguments = [f"--audience={one}" for one in audience]
    made = kubectl(sandman.bed, "-n", NAMESPACE, "create", "token", "trainer", *arguments)
    return made.strip()


def test_a_serviceaccount_works_with_a_token_for_this_audience_alone(sandman, rules):
    token = account_token(sandman, "sandman")
    with replicas(sandman) as both:
        assert {status(one, token) for one in both} == {401}
        write_rules(sandman, **{"account.trainers": ACCOUNT})
        soon("the rule holds", lambda: {status(one, token) for one in both} == {200})
        for audience in ([], ["https://kubernetes.default.svc"], ["other"]):
            assert {status(one, account_token(sandman, *audience)) for one in both} == {401}
        two = account_token(sandman, "other", "sandman")
        assert {status(one, two) for one in both} == {200}
        with client_of(sandman, token) as client:
            box = client.create(image=sandman.image("debian"), wait_s=120)
            assert box.exec(["id", "-u"]).stdout_text.strip() == "0"
            box.release()
        # Gone at its issuer: for as long as a verdict is kept it is taken yet.
        kubectl(sandman.bed, "-n", NAMESPACE, "delete", "serviceaccount", "trainer")
        begun = time.monotonic()
        soon("it is refused", lambda: {status(one, token) for one in both} == {401}, 60)
        print(f"a deleted ServiceAccount was refused by all after {time.monotonic() - begun:.1f} s")


def test_a_jwt_is_who_its_claims_say(sandman, rules):
    signer, other = Signer("ES256"), Signer("ES256")
    write_rules(sandman, **{"issuer.ci": entry(keyset(signer), callers={
        "ci": {"claims": {"sub": "ci"}, "tenant": "demo"},
    })})  # fmt: skip
    said = said_by_default(time.time())
    with replicas(sandman) as both:
        soon(
            "the issuer is known",
            lambda: {status(one, signer.token(said)) for one in both} == {200},
            SLOW_S,
        )
        for claims, code in (
            (said | {"aud": "x"}, 401), (said | {"exp": time.time() - 60}, 401), (said | {"sub": "x"}, 403),
        ):  # fmt: skip
            assert {status(one, signer.token(claims)) for one in both} == {code}
        assert {status(one, other.token(said)) for one in both} == {401}
        write_rules(sandman)
        token = signer.token(said)
        soon("the rule is gone", lambda: {status(one, token) for one in both} == {401})


def test_a_key_is_made_rotated_and_revoked_on_all_replicas_within_seconds(sandman):
    token = cli(sandman, "keys", "new", "callers-test", "--tenant", "demo", "--expires", "1h")
    try:
        with replicas(sandman) as both, client_of(sandman, token) as client:
            soon("it is known", lambda: {status(one, token) for one in both} == {200})
            assert "callers-test" in cli(sandman, "keys", "list")
            box = client.create(image=sandman.image("debian"), wait_s=120)
            try:
                new = cli(sandman, "keys", "rotate", "callers-test", "--overlap", "1h")
                soon(
                    "the new one is known",
                    lambda: {status(one, new) for one in both} == {200},
                    SLOW_S,
                )
                assert {status(one, token) for one in both} == {200}
                told = revoked_while_a_command_runs(sandman, box.id, token, both)
                print(
                    f"revoked: refused by all after {told[0]:.2f} s, its stream ended after {told[1]:.2f} s"
                )
                assert max(told) < SLOW_S
                assert {status(one, new) for one in both} == {401}
            finally:
                with sandman_sync(sandman) as owner:
                    owner.attach(box.id).release()
    finally:
        with contextlib.suppress(AssertionError):
            cli(sandman, "keys", "revoke", "callers-test")


def sandman_sync(sandman) -> sdk.SyncClient:
    """The tenant's own client."""
    return client_of(sandman, sandman.installation.token)


def revoked_while_a_command_runs(
    sandman, box: str, token: str, both: list[httpx.Client]
) -> tuple[float, float]:
    """Seconds from the revocation until all replicas refuse the key, and until what it had open ended."""
    ended = []

    def run() -> None:
        try:
            both[0].post(
                f"/v1/sandboxes/{box}/exec", json={"argv": ["sleep", "300"]}, timeout=120,
                headers={"authorization": f"Bearer {token}", "accept": names.MEDIA_FRAMES},
            )  # fmt: skip
        finally:
            ended.append(time.monotonic())

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(2)
    assert ended == []
    cli(sandman, "keys", "revoke", "callers-test")
    begun = time.monotonic()
    wait_until("it is refused", lambda: {status(one, token) for one in both} == {401}, 60)
    refused = time.monotonic() - begun
    thread.join(60)
    return refused, max(0.0, ended[0] - begun)


def test_a_flood_of_made_up_tokens_is_told_to_wait_and_nobody_else_is(sandman):
    # From an address of its own: what other tests failed at from the usual one counts for some time.
    with replicas(sandman, model.NODE_IP) as both:
        one = both[0]
        codes = []
        while 429 not in codes[-2:] and len(codes) < 10 * BURST:
            codes.append(status(one, f"smk_demo_wrong{len(codes)}"))
        assert codes[:BURST] == [401] * BURST
        assert set(codes) == {401, 429}
        answer = one.get("/v1/pools", headers={"authorization": "Bearer smk_demo_x"})
        while answer.status_code == 401:  # one may pass each two seconds
            answer = one.get("/v1/pools", headers={"authorization": "Bearer smk_demo_x"})
        assert (answer.status_code, answer.json()["reason"]) == (429, "throttled")
        assert int(answer.headers["retry-after"]) >= 1
        for _ in range(10):
            assert status(one, sandman.installation.token) == 200
