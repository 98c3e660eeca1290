"""Callers of every kind on the real cluster: ServiceAccounts by TokenReview, JWTs, keys made and revoked by the command
line, and every signing key changed while sandboxes are used."""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import threading
import time
from typing import TYPE_CHECKING

import httpx
import pytest
from click.testing import CliRunner

import sandman as sdk
from gateway.failures import BURST
from sandman import names, signing
from sandman.cli import main
from sandman.errors import SandmanError
from tests.cluster import faults
from tests.cluster.bed import kubectl, model
from tests.cluster.bed.shell import wait_until
from tests.fakes.issuers import Signer, entry, keyset, said_by_default

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAMESPACE = "sandman-test-callers"
ACCOUNT = {"namespace": NAMESPACE, "name": "trainer", "tenant": "demo"}
SLOW_S = 30.0
"""Seconds that a revocation may take here: two cores run a whole cluster. What it took is printed."""


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


def write_rules(sandman, **entries: dict) -> None:
    """The ConfigMap has these entries and no others."""
    found = json.loads(
        faults.system(sandman, "get", "configmap", names.CALLERS_CONFIG, "-o", "json")
    )
    data: dict[str, str | None] = dict.fromkeys(found.get("data") or {})
    data |= {name: json.dumps(one) for name, one in entries.items()}
    patch = json.dumps({"data": data})
    faults.system(
        sandman, "patch", "configmap", names.CALLERS_CONFIG, "--type", "merge", "-p", patch
    )


def account_token(sandman, *audience: str) -> str:
    arguments = [f"--audience={one}" for one in audience]
    made = kubectl(sandman.bed, "-n", NAMESPACE, "create", "token", "trainer", *arguments)
    return made.strip()


def client_of(sandman, token: str) -> sdk.SyncClient:
    made = sandman.installation
    return sdk.SyncClient(made.url, token, ca=made.ca, server_name=made.server_name)


def cli(sandman, *arguments: str) -> str:
    """`sandman …` with the cluster's kubectl; its standard output."""
    bed = sandman.bed
    environment = {"KUBECONFIG": str(bed.kubeconfig), "PATH": f"{bed.bin}:{os.environ['PATH']}"}
    done = CliRunner(env=environment).invoke(main, [*arguments])
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


@contextlib.contextmanager
def replicas(sandman, source: str | None = None) -> Iterator[list[httpx.Client]]:
    """A client to each gateway, by its pod's address; calls come from `source`, an address of this machine."""
    text = faults.system(
        sandman, "get", "pods", "-l", "app.kubernetes.io/name=sandman-gateway", "-o", "json"
    )
    addresses = [pod["status"]["podIP"] for pod in json.loads(text)["items"]]
    trust = ssl.create_default_context(cafile=str(sandman.installation.ca))
    trust.check_hostname = False  # by address; the certificate must be the gateway's all the same
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                httpx.Client(
                    base_url=f"https://{one}:{names.GATEWAY_PORT}",
                    transport=httpx.HTTPTransport(verify=trust, local_address=source),
                    timeout=20,
                )
            )
            for one in addresses
        ]


def status(client: httpx.Client, token: str, path: str = "/v1/sandboxes") -> int:
    return client.get(path, headers={"authorization": f"Bearer {token}"}).status_code


def soon(what: str, check: Callable[[], bool], limit: float = SLOW_S) -> None:
    """Ask once a second: those who ask in vain more often are told to wait."""
    wait_until(what, check, limit, interval=1.0)


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


@pytest.mark.slow
def test_signing_keys_are_changed_under_load_and_the_old_one_goes(sandman, monkeypatch):
    """Commands run all the time, with the API key and with the sandboxes' own tokens, through a rotation, through
    the exchange of all placeholders and through the end of the old key: not one call fails."""
    monkeypatch.setattr(signing, "LAG_S", 45.0)  # the webhook looks each 30 s
    old = faults.system(
        sandman, "get", "secret", names.KEYS_SECRET, "-o", "jsonpath={.data.current}"
    )
    with Load(sandman) as load:
        cli(sandman, "signing-keys", "rotate", "--settle", "10s")
        now = faults.system(
            sandman, "get", "secret", names.KEYS_SECRET, "-o", "jsonpath={.data.current}"
        )
        assert now != old
        [current, before, *_] = json.loads(cli(sandman, "signing-keys", "list", "--json"))
        assert (current["state"], before["state"]) == ("current", "needed")
        assert before["pods"] > 0
        # Placeholders of before are claimed after; their daemons know the old key's token alone.
        load.exchange()
        time.sleep(signing.LAG_S + 5)
        sandman.kubectl("rollout", "restart", "deployment", "-l", names.LABEL_POOL)
        for pool in ("sandman-pool-root", "sandman-pool-restricted"):
            sandman.kubectl("rollout", "status", f"deployment/{pool}", "--timeout=180s")
        load.exchange()

        def is_unused() -> bool:
            return "unused" in cli(sandman, "signing-keys", "list")

        soon("no pod needs the old key", is_unused, 120)
        cli(sandman, "signing-keys", "prune")
        shown = json.loads(cli(sandman, "signing-keys", "list", "--json"))
        assert before["id"] not in {one["id"] for one in shown}
        time.sleep(5)
    print(f"{load.calls} commands during a rotation, {len(load.failed)} failed")
    assert load.failed == []
    assert load.calls > 100


class Load:
    """Two sandboxes in which commands run one after the other, one by the API key and one by its own token."""

    def __init__(self, sandman) -> None:
        self._sandman = sandman
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.calls = 0
        self.failed: list[str] = []

    def __enter__(self) -> Load:
        self._threads = [
            threading.Thread(target=self._run, args=(own,), daemon=True) for own in (False, True)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    def exchange(self) -> None:
        """Let the next round of sandboxes take the place of these."""
        with self._lock:
            rounds = self.rounds
        soon("two rounds more", lambda: self.rounds >= rounds + 4, 120)

    rounds = 0

    def _run(self, own: bool) -> None:
        while not self._stop.is_set():
            try:
                self._round(own)
            except SandmanError as error:
                self.failed.append(f"{type(error).__name__}: {error}")
                time.sleep(1)

    def _round(self, own: bool) -> None:
        with sandman_sync(self._sandman) as client:
            # What a placeholder has of its own is no command.
            box = client.create(image=self._sandman.image("busybox"), wait_s=120)
            try:
                with client_of(self._sandman, box.info.token) as narrow:
                    user = narrow.attach(box.id) if own else box
                    for _ in range(20):
                        result = user.exec(["true"])
                        with self._lock:
                            self.calls += 1
                            if not result.ok:
                                self.failed.append(str(result))
                        time.sleep(0.1)
            finally:
                box.release()
                with self._lock:
                    self.rounds += 1
