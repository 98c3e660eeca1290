"""What a certificate says, out of what each witness has told; and whom the gateway asks for it."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from gateway import certified
from gateway.certified import Clock, Issue, Network, Told
from gateway.certifier import Certifier
from gateway.changed import UNREADABLE, Changes
from gateway.daemons import NotListeningError
from gateway.facts import UNKNOWN, Facts, NodeFacts
from gateway.model import Amounts, Bounds, Ending, Instance, Place
from gateway.provider.local.witness import LocalWitness
from gateway.provider.witness import Witness, of_objects
from gateway.proxy import Target
from gateway.registry import Registry
from sandman import certificates, names
from sandman.errors import (
    DiedError,
    NetworkNotAppliedError,
    NetworkUnsupportedError,
    NotFoundError,
    UnreachableError,
    VersionSkewError,
)
from sandman.service import kube
from tests.fakes.api_server import ApiServer
from tests.fakes.objects import node, placeholder
from tests.unit.gateway.test_kubernetes_values import pod as parsed
from tests.unit.gateway.test_roster import leased

EXACT = Bounds(Amounts(500, 2**29), Amounts(500, 2**29))
NODE = NodeFacts(
    name="n1", node_class="eval", kernel="6.1", os="Debian", architecture="amd64", runtime="containerd://2",
    kubelet="v1.35", allocatable=Amounts(2000, 2**32),
)  # fmt: skip
FACTS = Facts(
    image_digest="r/i@sha256:1", qos="Guaranteed", restarts=0, container_started_at=3.0, node=NODE
)
AGREED = {"dedicated": True, "threads": 2, "own": ["TZ"], "network_acknowledged": True}
ASKED = {"purpose": "eval", "fingerprint": "f", "conditions": AGREED}
BOX = leased(bounds=EXACT, actual=EXACT, request=ASKED, created_at=1.0, started_at=2.0)
INSIDE: dict[str, Any] = {"boot_id": "b1", "clock": 1000.0, "memory": {"oom_kills": 0}}
COMMAND: dict[str, Any] = {
    "exec_id": "e1", "state": "ended", "wall_s": 1.0, "throttled_s": 0.0, "oom_killed": False,
    "stalled_s": {"cpu": 0.0, "memory": 0.0, "io": None},
}  # fmt: skip
OPEN = Network(True, [{"what": "x", "expected": "closed", "outcome": "timeout"}])


def made(box: Instance = BOX, facts: Facts = FACTS, network: Network = OPEN, others=()) -> Any:
    told = Told(INSIDE, [COMMAND], Clock(0.01234567, 0.001))
    return certified.document(box, facts, network, others, told, Issue(1000.0, "g1"))


def test_what_was_agreed_is_told():
    told = made()["api"]["conditions"]
    assert (told["dedicated"], told["env"]["OMP_NUM_THREADS"]) == (True, "2")
    assert "TZ" not in told["env"]


def test_what_secrets_could_be_guessed_by_is_not_told():
    assert made()["asked"] == {"purpose": "eval"}


def test_each_witness_has_its_own_part():
    told = made(others=[leased(uid="2", bounds=EXACT), leased(uid="3")])
    assert (told["verdict"], told["reasons"]) == ("controlled", [])
    assert told["unmeasured"] == ["pressure.io"]
    assert told["issued_at"] == "1970-01-01T00:16:40.000Z"
    assert told["gateway"]["replica"] == "g1"
    api, inside = told["api"], told["inside"]
    assert api["node"] == {
        "name": "n1", "class": "eval", "kernel": "6.1", "os": "Debian", "architecture": "amd64",
        "runtime": "containerd://2", "kubelet": "v1.35", "allocatable": {"cpu_m": 2000, "memory_bytes": 2**32},
    }  # fmt: skip
    assert api["given"]["limits"] == api["limits"] == {"cpu_m": 500, "memory_bytes": 2**29}
    assert api["neighbours"] == {
        "pods": 2, "requests": {"cpu_m": 500, "memory_bytes": 2**29},
        "limits": {"cpu_m": 500, "memory_bytes": 2**29}, "without_limit_of_cpu": 1,
    }  # fmt: skip
    assert api["times"]["container_started_at"] == "1970-01-01T00:00:03.000Z"
    assert (inside["clock_offset_s"], inside["clock_error_s"]) == (0.0123, 0.001)
    assert inside["boot_id"] == "b1"
    # What code inside may have changed is nowhere but where that is said.
    assert "boot_id" not in api
    assert certificates.sign(told, b"s" * 32).document["verdict"] == "controlled"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"facts": UNKNOWN}, "qos"),
        ({"facts": dataclasses.replace(FACTS, restarts=1)}, "restarts"),
        ({"network": Network(False, [], "10.0.0.1 should be closed: reachable")}, "network"),
        ({"network": Network(None, [], "it cannot be probed")}, "network"),
        ({"box": dataclasses.replace(BOX, request={})}, "purpose"),
        ({"box": dataclasses.replace(BOX, request={"purpose": ["eval"]})}, "purpose"),
        ({"box": dataclasses.replace(BOX, previous_boot_id="b0")}, "restarts"),
        ({"box": dataclasses.replace(BOX, swapped=True)}, "restarts"),
        ({"box": dataclasses.replace(BOX, network_changes=Changes(2.0, ("open",)))}, "network"),
        (
            {"box": dataclasses.replace(BOX, network_changes=Changes(None, (UNREADABLE,)))},
            "network",
        ),
        ({"others": [leased(uid="2", bounds=Bounds(Amounts(1600, 1)))]}, "neighbours"),
    ],
)
def test_what_one_of_them_says_can_be_the_reason(change, code):
    told = made(**change)
    assert told["verdict"] == "uncontrolled"
    assert code in {one["code"] for one in told["reasons"]}


def test_a_workload_has_no_profile_of_ours():
    place = Place(pod="web", container="app", port=2, boot_id="b1")
    told = made(dataclasses.replace(BOX, place=place, actual=None))
    assert (told["api"]["network"]["profile"], told["api"]["given"]) == (None, None)


def test_when_its_network_was_changed_is_told_and_what_it_was():
    assert made()["api"]["network"] == {
        "profile": "none", "in_force": True, "probes": OPEN.probes, "detail": "", "changed_at": None, "before": [],
    }  # fmt: skip
    changes = Changes(2.0, ("open", "internet"))
    told = made(dataclasses.replace(BOX, network_changes=changes))["api"]["network"]
    assert told["changed_at"] == "1970-01-01T00:00:02.000Z"
    assert told["before"] == ["open", "internet"]


def test_a_change_that_the_watch_has_not_seen_yet_is_told():
    """Made through another replica a moment ago, or for as long as a watch is dead."""
    facts = dataclasses.replace(FACTS, network_changes=Changes(3.0, ("none", "open")))
    told = made(facts=facts)
    assert told["api"]["network"]["before"] == ["none", "open"]
    assert [one["code"] for one in told["reasons"]] == ["network"]


@pytest.mark.parametrize("more", [{"previous_boot_id": "b0"}, {"swapped": True}])
async def test_of_a_swap_one_start_more_is_usual_whenever_it_was(more):
    box = dataclasses.replace(BOX, **more)
    told = made(box, facts=dataclasses.replace(FACTS, restarts=1))
    assert (told["api"]["restarts_usual"], told["verdict"]) == (1, "controlled")
    assert (await LocalWitness(Amounts(2000, 2**33)).facts(box)).restarts == 1


def test_the_key_that_signs_is_told_first():
    keys = {"a": b"a" * 32, "b": b"b" * 32, "c": b"c" * 32}
    publics = certified.public_keys(keys, "b")
    seeds = [certified.seed_of(keys[one]) for one in "bac"]
    assert publics == [certificates.public_key(seed) for seed in seeds]
    # It is not the key of tokens itself.
    assert certified.seed_of(b"a" * 32) != b"a" * 32


# --- the API server ---


CHANGED = '{"at": 5, "before": ["open"]}'


def node_of(name: str = "n1") -> dict:
    document = node(name)
    document["metadata"]["labels"] = {names.LABEL_NODE_CLASS: "eval"}
    document["status"] |= {
        "allocatable": {"cpu": "3920m", "memory": "7Gi"},
        "nodeInfo": {
            "kernelVersion": "6.1.0", "osImage": "Debian 13", "containerRuntimeVersion": "containerd://2.1",
            "kubeletVersion": "v1.35.0", "architecture": "amd64",
        },
    }  # fmt: skip
    return document


async def test_the_pod_and_its_node_are_read_anew():
    server = ApiServer()
    async with server.client() as api:
        document = placeholder("p")
        document["status"]["qosClass"] = "Guaranteed"
        document["spec"]["runtimeClassName"] = "gvisor"
        document["metadata"]["annotations"][names.ANNOTATION_NETWORK_CHANGED] = CHANGED
        stored = server.put("pods", document)
        uid = (stored or document)["metadata"]["uid"]
        witness = Witness(api)
        box = leased(namespace=document["metadata"]["namespace"], name="p", uid=uid)
        assert (await witness.facts(box)).node is None  # it is gone, or never was
        server.put("nodes", node_of())
        facts = await witness.facts(box)
        assert (facts.qos, facts.runtime_class, facts.restarts) == ("Guaranteed", "gvisor", 0)
        assert facts.network_changes == Changes(5.0, ("open",))
        assert facts.image_digest is not None
        assert facts.container_started_at is not None
        assert facts.node is not None
        assert (facts.node.kernel, facts.node.node_class) == ("6.1.0", "eval")
        assert facts.node.allocatable == Amounts(3920, 7 * 2**30)
        # Another pod of that name is not this one.
        assert await witness.facts(dataclasses.replace(box, uid="other")) == UNKNOWN
        assert await witness.facts(dataclasses.replace(box, name="gone")) == UNKNOWN
        attached = dataclasses.replace(box, name="lease", uid="x", place=Place("p", "main", 2, "b"))
        of_workload = await witness.facts(attached)
        # Its pod is not Sandman's to write, and what stands there not Sandman's word.
        assert (of_workload.qos, of_workload.network_changes) == ("Guaranteed", None)


async def test_an_api_server_that_does_not_tell_is_an_error():
    class Away:
        async def get(self, *_: object, **__: object) -> None:
            raise kube.UnavailableError("away")

    with pytest.raises(UnreachableError):
        await Witness(Away()).facts(BOX)  # type: ignore[arg-type]


def test_of_a_container_that_does_not_run_nothing_is_known():
    facts = of_objects(parsed({"metadata": {"name": "p"}}), None)
    assert facts == UNKNOWN
    assert of_objects(parsed(placeholder("p")), None, "another").restarts is None


async def test_local_mode_claims_no_more_than_it_has():
    facts = await LocalWitness(Amounts(2000, 2**33)).facts(
        dataclasses.replace(BOX, previous_boot_id="b0", image_digest="sha256:1")
    )
    assert (facts.qos, facts.restarts, facts.image_digest) == (None, 1, "sha256:1")
    assert facts.node is not None
    assert (facts.node.runtime, facts.node.kubelet) == ("sandman-local", "")


# --- who is asked ---


class Beds:
    """A certifier whose daemon, network and API server do what a test says."""

    def __init__(self) -> None:
        self.evidence: Any = ({**INSIDE}, [COMMAND])
        self.probe: Any = OPEN.probes
        self.facts_: Any = FACTS
        self.at_once = self.most = 0
        self.pause_s = 1.0
        self.registry = Registry(keep_ended=3)
        self.upstream = self
        self.losses = self
        self.sandbox_keys, self.current_key = {"k": b"k" * 32}, "k"
        self.one = Certifier(self, self, self, self.registry, self, lambda: 1000.25, "g1")  # type: ignore[arg-type]

    async def _give(self, what: Any) -> Any:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await trio.sleep(self.pause_s)
        finally:
            self.at_once -= 1
        if isinstance(what, Exception):
            raise what
        return what

    async def facts(self, _: Instance) -> Any:
        return await self._give(self.facts_)

    async def prove(self, _: Instance, name: str, wait_s: float) -> Any:
        assert (name, wait_s) == ("none", 0.0)
        return await self._give(self.probe)

    async def diagnose(self, *_: object) -> Exception:
        return UnreachableError("nobody knows why")

    async def certify(self, box: Instance = BOX) -> Any:
        return await self.one.certify(Target(box, "b1", 26.0), ("e1",))


@pytest.fixture
def bed() -> Beds:
    bed = Beds()
    bed.upstream = SimpleNamespace(evidence=lambda *_: bed._give(bed.evidence))  # type: ignore[assignment]
    return bed


async def test_all_are_asked_and_the_clock_is_compared(bed, autojump_clock):
    found = await bed.certify()
    assert found.document["inside"]["clock_offset_s"] == -0.25
    assert certificates.verify(
        found.to_json(), {certificates.key_id(one): one for one in bed.one.keys}
    )
    # Network and API server at the same time; the daemon before, so that probes disturb no command.
    assert trio.current_time() == pytest.approx(2.0)


async def test_neighbours_are_those_of_its_node_that_live(bed, autojump_clock):
    for uid, more in {
        "2": {},
        "3": {"node": "n2"},
        "4": {"ending": Ending("died", "x")},
        BOX.uid: {},
    }.items():
        bed.registry.put(leased(uid=uid, name=f"p{uid}", bounds=EXACT, **more))
    assert (await bed.certify()).document["api"]["neighbours"]["pods"] == 1
    nowhere = await bed.certify(dataclasses.replace(BOX, node=None))
    assert nowhere.document["api"]["neighbours"]["pods"] == 0


@pytest.mark.parametrize(
    ("error", "in_force"),
    [(NetworkNotAppliedError("open"), False), (NetworkUnsupportedError("dark"), None)],
)
async def test_a_network_that_is_not_shown_is_told_and_no_error(
    bed, error, in_force, autojump_clock
):
    bed.probe = error
    network = (await bed.certify()).document["api"]["network"]
    assert (network["in_force"], network["detail"]) == (in_force, error.detail)


async def test_a_workloads_network_is_not_probed(bed, autojump_clock):
    bed.probe = AssertionError("probed")
    box = dataclasses.replace(BOX, place=Place("web", "app", 2, "b1"))
    assert (await bed.certify(box)).document["api"]["network"]["in_force"] is None


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (NotListeningError("nobody"), UnreachableError),
        (NotFoundError("there is no /v1/evidence"), VersionSkewError),
        (({**INSIDE, "boot_id": "b2"}, []), DiedError),
    ],
)
async def test_a_daemon_that_does_not_tell(bed, said, error, autojump_clock):
    bed.evidence = said
    with pytest.raises(error):
        await bed.certify()


async def test_a_clock_that_is_not_told_is_a_reason(bed, autojump_clock):
    bed.evidence = ({**INSIDE, "clock": None}, [COMMAND])
    found = await bed.certify()
    assert [one.code for one in found.reasons] == ["clock"]


async def test_an_api_server_that_fails_is_its_own_error(bed, autojump_clock):
    bed.facts_ = UnreachableError("away")
    with pytest.raises(ExceptionGroup) as caught:  # as the edge takes it: `app._Edge.group`
        await bed.certify()
    assert caught.group_contains(UnreachableError)
