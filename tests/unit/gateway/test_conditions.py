"""Under which conditions an evaluation runs: its pool, its environment, its network, its nodes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import trio

from gateway import conditions, views
from gateway.conditions import COUNTS, FIXED, environment, threads
from gateway.config import SettingError, Settings
from gateway.model import (
    Amounts,
    Bounds,
    Ending,
    Instance,
    PoolSpec,
    Purpose,
    SandboxRequest,
    Share,
)
from gateway.provider import NodeSeen, affinity, patches, pods
from gateway.wants import record
from sandman.errors import (
    CapacityError,
    NetworkNotAppliedError,
    NetworkUnsupportedError,
    NotFoundError,
)
from sandman.probes import Target
from tests.fakes.cluster import BASE, TASK, FakeCluster, make_pool
from tests.unit.gateway.test_kubernetes_values import assignment, pod, running_pod
from tests.unit.gateway.test_preparation import STEPS
from tests.unit.gateway.test_profiles import policy

GI = 1024**3
WHOLE = Bounds(Amounts(2000, GI), Amounts(2000, GI))
SHARED = Bounds(Amounts(250, GI // 4), Amounts(2000, GI))
EVAL_POOL = PoolSpec(
    "ns", "eval", BASE, swap=True, wanted=1, most=None, bounds=WHOLE, evaluates=True, resize=True
)


def request(**changes) -> SandboxRequest:
    values = {"image": TASK, "pool": "root", "max_s": 60.0, "wait_s": 1.0, "names_pool": False}
    return SandboxRequest(**({**values, "purpose": Purpose.EVAL} | changes))


# --- the environment ---


@pytest.mark.parametrize(
    ("cpu", "count"), [(None, None), (10, 1), (999, 1), (1000, 1), (1999, 1), (2000, 2), (6500, 6)]
)
def test_as_many_threads_as_whole_processors_one_at_least(cpu, count):
    assert threads(cpu) == count


def test_the_environment_is_fixed_and_counts_are_the_limit():
    assert environment(None) == FIXED
    found = environment(3)
    assert {name: found[name] for name in COUNTS} == dict.fromkeys(COUNTS, "3")
    assert (found["TZ"], found["LC_ALL"], found["PYTHONHASHSEED"]) == ("UTC", "C.UTF-8", "0")
    assert len(found) == len(FIXED) + len(COUNTS)


def test_what_a_caller_sets_himself_stays_and_of_it_the_name_alone_is_kept():
    asked = request(env=(("TZ", "Asia/Tokyo"), ("TOKEN", "secret")), resources=Amounts(cpu=3500))
    got, kept = conditions.agreed(asked, EVAL_POOL, {"a": 1}, waits=True)
    assert dict(got.env) == {**environment(3), "TZ": "Asia/Tokyo", "TOKEN": "secret"}
    assert kept == {
        "a": 1,
        "conditions": {
            "dedicated": True,
            "threads": 3,
            "own": ["TZ"],
            "network_acknowledged": True,
        },
    }


@pytest.mark.parametrize("purpose", [Purpose.TRAIN, Purpose.AHEAD])
def test_nothing_else_has_an_environment_that_it_did_not_ask_for(purpose):
    asked, kept = request(purpose=purpose), {"a": 1}
    assert conditions.agreed(asked, EVAL_POOL, kept, waits=False) == (asked, kept)


def made(**changes) -> Instance:
    values = {"namespace": "ns", "name": "p", "uid": "u-1", "version": "1", "pool": "eval"}
    kept = {"conditions": {"dedicated": True, "threads": 2, "own": ["TZ"]}}
    values |= {"state": "leased", "bounds": WHOLE, "qos": "Guaranteed", "request": kept}
    return Instance(**(values | changes))


def test_what_a_caller_is_told():
    told = conditions.shown(made())
    whole = {"cpu": "2", "memory": "1Gi"}
    assert told is not None
    env = told.pop("env")
    assert env == {name: one for name, one in environment(2).items() if name != "TZ"}
    assert told == {
        "purpose": "eval", "dedicated": True, "floor": whole, "ceiling": whole, "qos": "Guaranteed",
        "exclusive_cpus": None, "network_acknowledged": False,
    }  # fmt: skip
    assert views.sandbox(made())["conditions"] == conditions.shown(made())
    assert "conditions" not in views.sandbox(made(request={}))


def test_what_a_kubelet_has_not_done_is_not_told():
    half = Bounds(Amounts(500, GI), Amounts(500, GI))
    told = conditions.shown(made(bounds=half, actual=WHOLE, running=True))
    assert told is not None
    assert (told["ceiling"], told["exclusive_cpus"]) == ({"cpu": "2", "memory": "1Gi"}, None)


@pytest.mark.parametrize(
    "other",
    [
        {"qos": "Burstable"},
        {"qos": ""},
        {"bounds": Bounds(Amounts(1500, GI), Amounts(1500, GI))},
        {"bounds": Bounds()},
    ],
)
def test_no_kubelet_gives_exclusive_cpus_to_these(other):
    told = conditions.shown(made(**other))
    assert told is not None
    assert told["exclusive_cpus"] is False


@pytest.mark.parametrize(
    "broken", [None, 3, [], {"threads": "x", "own": 1}, {"dedicated": "yes", "own": None}]
)
def test_a_record_that_somebody_broke_breaks_nothing(broken):
    told = conditions.shown(made(request={"conditions": broken}))
    assert told is None or (told["dedicated"], told["env"]) == (False, FIXED)


def test_the_api_server_says_of_which_class_a_pod_is():
    document = running_pod()
    document["status"]["qosClass"] = "Guaranteed"
    assert pods.instance(pod(document)).qos == "Guaranteed"


def test_a_setting_says_whether_evaluations_wait_for_their_network():
    name = "SANDMAN_GATEWAY_EVAL_NETWORK_WAIT"
    assert Settings.from_env({}).eval_network_wait
    assert not Settings.from_env({name: "false"}).eval_network_wait
    assert Settings.from_env({name: "true"}).eval_network_wait
    with pytest.raises(SettingError, match=name):
        Settings.from_env({name: "no"})


def test_requests_from_before_there_were_conditions_have_the_same_fingerprint():
    plain = record(request())
    assert "network_wait" not in plain
    assert "avoid_nodes" not in plain
    assert record(request(purpose=Purpose.TRAIN, network_wait=False)) == record(
        request(purpose=Purpose.TRAIN)
    )
    for other in ({"network_wait": False}, {"network_wait": True}, {"avoid_nodes": ("n1",)}):
        assert record(request(**other))["fingerprint"] != plain["fingerprint"]


def test_each_variable_is_documented_with_its_reason():
    told = (Path(__file__).parents[3] / "docs" / "evaluation.md").read_text()
    assert all(f"`{name}`" in told for name in environment(1))


# --- its size ---


def test_a_pod_that_is_made_for_one_is_guaranteed_too():
    resources = {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}
    template = {"metadata": {}, "spec": {"containers": [{"name": "m", "resources": resources}]}}
    spec = dataclasses.replace(EVAL_POOL, template=template)
    grown = assignment(resources=Amounts(3000, 2 * GI))
    [container] = patches.cold_pod(spec, "c", grown)["spec"]["containers"]
    whole = {"cpu": "3", "memory": "2Gi"}
    assert container["resources"] == {"requests": whole, "limits": whole}


# --- other nodes ---

AWAY = [
    {"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in ("n1", "n2.example")
]
NODES = ("n1", "n2.example")
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def test_a_new_pod_is_kept_from_nodes_by_their_names():
    template = {"metadata": {}, "spec": {"containers": [{"name": "m"}]}}
    spec = dataclasses.replace(EVAL_POOL, template=template)
    body = patches.cold_pod(spec, "c", assignment(avoid_nodes=NODES))["spec"]
    terms = [{"matchFields": AWAY}]
    assert body["affinity"] == {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    assert "affinity" not in patches.cold_pod(spec, "c", assignment())["spec"]
    assert "affinity" not in template["spec"]


def test_what_a_template_says_of_nodes_still_holds():
    big = {"matchExpressions": [{"key": "class", "operator": "In", "values": ["big"]}]}
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n3"]}]}
    before = {
        "podAffinity": {"a": 1},
        "nodeAffinity": {"preferred": 2, REQUIRED: {"nodeSelectorTerms": [big, here]}},
    }
    found = affinity.away_from(before, NODES)
    assert (found["podAffinity"], found["nodeAffinity"]["preferred"]) == ({"a": 1}, 2)
    assert found["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [
        {**big, "matchFields": AWAY},
        {"matchFields": here["matchFields"] + AWAY},
    ]
    assert before["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [big, here]


# --- over a cluster in memory ---

API = Target("10.0.0.200", 443)


@pytest.fixture
async def bed():
    """Two pools with a placeholder each, on nodes n1 and n2."""
    cluster = FakeCluster()
    pool = make_pool(cluster, Settings(cold_max=0))
    pool.networks.closed = {API: "the API server"}
    async with trio.open_nursery() as nursery:
        cluster.nursery = nursery
        nursery.start_soon(pool.run, cluster.receive)
        cluster.pool(bounds=SHARED, resize=True, choose=True)
        open_ = frozenset({"open"})
        cluster.pool("eval", bounds=WHOLE, resize=True, choose=True, evaluates=True, networks=open_)
        cluster.send.send_nowait(NodeSeen("n2", closed=False, images=tuple(cluster.known_images)))
        cluster.placeholder(bounds=SHARED)
        cluster.placeholder(bounds=WHOLE, pool="eval", node="n2")
        cluster.synced()
        await trio.testing.wait_all_tasks_blocked()
        yield cluster, pool
        nursery.cancel_scope.cancel()


async def test_rollouts_that_take_all_leave_an_evaluation_its_own(autojump_clock, bed):
    cluster, pool = bed
    train = request(purpose=Purpose.TRAIN, wait_s=30.0)
    async with trio.open_nursery() as nursery:
        outcomes: list[object] = []

        async def roll() -> None:
            try:
                outcomes.append((await pool.allocate("acme", train, None)).instance.pool)
            except CapacityError as error:
                outcomes.append(error.reason)

        for _ in range(20):
            nursery.start_soon(roll)
        await trio.testing.wait_all_tasks_blocked()
        begun = trio.current_time()
        got = await pool.allocate("acme", request(), None)
        assert got.instance.pool == "eval"
        # A swap and its probes, of which a silence takes two; nobody was waited for.
        assert trio.current_time() - begun < 1.0
        assert got.timings.queued_ms == 0.0
    assert outcomes.count("root") == 1
    assert outcomes.count("capacity") == 19
    assert {one.pool for one in cluster.leased()} == {"root", "eval"}


async def test_an_evaluation_is_handed_over_when_its_network_is_proved(autojump_clock, bed):
    cluster, pool = bed
    got = await pool.allocate("acme", request(), None)
    assert cluster.probed
    told = views.sandbox(got.instance)["conditions"]
    assert told["network_acknowledged"] is True
    assert (told["floor"], told["ceiling"]) == (told["ceiling"], {"cpu": "2", "memory": "1Gi"})
    assert told["env"]["OMP_NUM_THREADS"] == "2"


async def test_one_whose_network_is_not_in_force_is_not_handed_over(autojump_clock, bed):
    cluster, pool = bed
    cluster.leaks.add(API)
    with pytest.raises(NetworkNotAppliedError):
        await pool.allocate("acme", request(wait_s=60.0), None)
    assert not cluster.leased()


def unprovable(cluster: FakeCluster, why: str) -> None:
    """A network of which nobody can show whether it is in force."""
    if why == "no canary":
        cluster.policies["ns"] = [policy("open", canary=None)]
    else:
        cluster.fail_probes = [NotFoundError("there is no /v1/probe") for _ in range(10)]


UNPROVABLE = pytest.mark.parametrize("why", ["no canary", "an old daemon"])


@UNPROVABLE
@pytest.mark.parametrize("prepare", [False, True])
async def test_one_whose_network_cannot_be_proved_is_handed_over_and_told_so(
    autojump_clock, bed, why, prepare
):
    cluster, pool = bed
    unprovable(cluster, why)
    steps = {"prepare": STEPS} if prepare else {}
    got = await pool.allocate("acme", request(network="open", **steps), "k", share=Share())
    assert views.sandbox(got.instance)["conditions"]["network_acknowledged"] is False
    # Written on the pod, so that each replica, and the certificate, tells the same.
    assert conditions.shown(cluster.pods[got.instance.uid])["network_acknowledged"] is False
    assert [one for one, _ in cluster.writes].count("agreed") == 1
    again = await pool.allocate("acme", request(network="open", **steps), "k", share=Share())
    assert again.instance.id == got.instance.id
    assert views.sandbox(again.instance)["conditions"]["network_acknowledged"] is False
    assert [one for one, _ in cluster.writes].count("agreed") == 1


@UNPROVABLE
async def test_who_asks_for_the_proof_gets_none_without_it(autojump_clock, bed, why):
    cluster, pool = bed
    unprovable(cluster, why)
    with pytest.raises(NetworkUnsupportedError):
        await pool.allocate("acme", request(network="open", network_wait=True), None, share=Share())
    assert not cluster.leased()


async def test_one_that_is_gone_when_that_is_written_does_not_come_back(autojump_clock, bed):
    cluster, pool = bed
    unprovable(cluster, "no canary")
    agree = cluster.agree

    async def and_goes(instance, record):
        await agree(instance, record)
        pool._roster.registry.forget(instance, Ending("node_lost", "its node is lost"))

    cluster.agree = and_goes
    got = await pool.allocate("acme", request(network="open"), None, share=Share())
    assert pool._roster.registry.get(got.instance.uid) is None


def test_a_record_is_told_to_be_unproved_once():
    _, kept = conditions.agreed(request(), EVAL_POOL, {"a": 1}, waits=True)
    got = conditions.unproved(kept)
    assert got == {**kept, "conditions": {**kept["conditions"], "network_acknowledged": False}}
    assert conditions.unproved(got) is None
    assert conditions.unproved({"a": 1}) is None


async def test_who_says_so_gets_it_at_once_and_is_told_that_nobody_looked(autojump_clock, bed):
    cluster, pool = bed
    cluster.leaks.add(API)
    got = await pool.allocate("acme", request(network_wait=False), None)
    assert not cluster.probed
    assert views.sandbox(got.instance)["conditions"]["network_acknowledged"] is False


async def test_commands_get_the_environment_with_the_claim(autojump_clock, bed):
    cluster, pool = bed
    await pool.allocate("acme", request(env=(("TZ", "Asia/Tokyo"),)), None)
    [env] = [dict(one) for one in cluster.told_env.values() if one]
    assert env == {**environment(2), "TZ": "Asia/Tokyo"}


async def test_a_node_that_is_to_be_avoided_is(autojump_clock, bed):
    cluster, pool = bed
    away = request(avoid_nodes=("n2",), network_wait=False)
    with pytest.raises(CapacityError):
        await pool.allocate("acme", away, None)
    cluster.placeholder(bounds=WHOLE, pool="eval", node="n1")
    got = await pool.allocate("acme", away, None)
    assert (got.instance.pool, got.instance.node) == ("eval", "n1")


async def test_where_no_other_node_takes_pods_none_is_avoided(autojump_clock, bed):
    cluster, pool = bed
    cluster.send.send_nowait(NodeSeen("n1", closed=True, images=()))
    await trio.testing.wait_all_tasks_blocked()
    got = await pool.allocate("acme", request(avoid_nodes=("n2",), network_wait=False), None)
    assert got.instance.node == "n2"


async def test_the_digest_of_the_work_is_what_the_evaluation_runs(autojump_clock, bed):
    cluster, pool = bed
    digest = f"registry.example/task@sha256:{'a' * 64}"
    cluster.send.send_nowait(NodeSeen("n2", closed=False, images=(BASE, digest)))
    got = await pool.allocate("acme", request(image=digest), None)
    assert (got.instance.tier, got.instance.image) == ("swap", digest)
    assert views.sandbox(got.instance)["image"] == digest
