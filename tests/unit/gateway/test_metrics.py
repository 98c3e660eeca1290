"""What the gateway counts: names, labels that have an end, and nothing of tenants where callers read."""

from __future__ import annotations

import dataclasses
import re

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from gateway import firsts, gauges
from gateway.config import Settings
from gateway.firsts import FirstCommands
from gateway.metrics import SECONDS, Metrics
from gateway.model import Ready, SandboxRequest, Timings
from gateway.outcomes import Outcomes
from sandman.errors import CapacityError
from tests.fakes.cluster import FakeCluster, make_pool


def samples(text: bytes, name: str) -> dict[tuple[str, ...], float]:
    """Values of one sample by its labels, in the order of the names of the labels."""
    return {
        tuple(value for _, value in sorted(one.labels.items())): one.value
        for family in text_string_to_metric_families(text.decode())
        for one in family.samples
        if one.name == name
    }


def request(**changes) -> SandboxRequest:
    values = {"image": None, "pool": "root", "max_s": 60.0, "wait_s": 1.0}
    return SandboxRequest(**(values | changes))


# --- outcomes ---


def test_outcomes_have_few_values_whatever_callers_send():
    outcomes = Outcomes()
    for error, counted in (
        (CapacityError("none"), "capacity"),
        (ValueError("a fault"), "internal"),
        (KeyboardInterrupt(), "cancelled"),
    ):
        with pytest.raises(type(error)), outcomes.of("made-up-by-a-caller", {"root"}):
            raise error
        assert outcomes.counts["none", "none", counted] == 1
    with pytest.raises(CapacityError), outcomes.of("root", {"root"}):
        raise CapacityError("none")
    with outcomes.of("root", {"root"}):
        pass
    assert sum(outcomes.counts.values()) == 4
    assert outcomes.counts["root", "none", "capacity"] == 1


async def test_allocations_are_counted_by_pool_tier_and_outcome(nursery, autojump_clock):
    cluster = FakeCluster()
    pool = make_pool(cluster)
    nursery.start_soon(pool.run, cluster.receive)
    cluster.placeholder()
    cluster.pool()
    await trio.testing.wait_all_tasks_blocked()
    metrics = Metrics(pool._roster)
    metrics.watch_pool(pool)
    metrics.allocated(await pool.allocate("acme", request(), None))
    metrics.allocated(await pool.allocate("acme", request(image="registry.example/x:1"), None))
    with pytest.raises(CapacityError):
        await pool.allocate("acme", request(wait_s=0.1), None)
    text = metrics.render()
    assert samples(text, "sandman_allocations_total") == {
        ("ok", "root", "warm"): 1.0,
        ("ok", "root", "cold"): 1.0,
        ("capacity", "root", "none"): 1.0,
    }
    for name in ("sandman_allocation_claim_seconds", "sandman_allocation_seconds"):
        assert samples(text, f"{name}_count") == {("warm",): 1.0, ("cold",): 1.0}
    claimed = samples(text, "sandman_allocation_claim_seconds_sum")["cold",]
    assert claimed < 0.1 < samples(text, "sandman_allocation_seconds_sum")["cold",]


def test_buckets_begin_at_a_millisecond():
    assert min(SECONDS) == 0.001
    assert list(SECONDS) == sorted(set(SECONDS))


# --- the queue, by tenant ---


async def test_who_waits_is_told_to_the_platform_alone(nursery, autojump_clock):
    cluster = FakeCluster()
    pool = make_pool(cluster, Settings(cold_max=0))
    nursery.start_soon(pool.run, cluster.receive)
    cluster.pool(swap=False)
    metrics = Metrics(pool._roster)
    metrics.watch_pool(pool)
    await trio.testing.wait_all_tasks_blocked()
    for tenant in ("acme", "acme", "zeta"):
        nursery.start_soon(pool.allocate, tenant, request(wait_s=60.0), None)
        await trio.sleep(1)
    assert b"acme" not in metrics.render()
    assert samples(metrics.render_all(), "sandman_queue_length") == {("acme",): 2, ("zeta",): 1}
    ages = samples(metrics.render_all(), "sandman_queue_age_seconds")
    assert ages == pytest.approx({("acme",): 3.0, ("zeta",): 1.0})
    assert samples(metrics.render(), "sandman_requests")["waiting",] == 3
    nursery.cancel_scope.cancel()


def test_only_so_many_tenants_have_series_and_the_rest_is_one():
    waiting = [("big", 1.0), ("big", 2.0)]
    waiting += [(f"t{number:03}", float(number)) for number in range(gauges.TENANTS_MAX + 1)]
    lengths, ages = gauges.summed(waiting)
    assert len(lengths) == gauges.TENANTS_MAX + 1
    assert (lengths["big"], ages["big"]) == (2, 2.0)
    assert (lengths[gauges.OTHER], ages[gauges.OTHER]) == (2, 50.0)
    assert sum(lengths.values()) == len(waiting)


# --- pools ---


async def test_pools_show_what_is_free_wanted_vetted_and_held(nursery, autojump_clock):
    cluster = FakeCluster()
    pool = make_pool(cluster)
    nursery.start_soon(pool.run, cluster.receive)
    cluster.pool()
    cluster.placeholder()
    cluster.placeholder(up_in=1000)
    cluster._put(dataclasses.replace(cluster.placeholder(up_in=1000), hold=0))
    await trio.testing.wait_all_tasks_blocked()
    text = Metrics(pool._roster).render()
    found = {
        name: samples(text, f"sandman_pool_{name}")["root",]
        for name in ("free", "wanted", "vetted", "held")
    }
    assert found == {"free": 3, "wanted": 1, "vetted": 1, "held": 1}
    nursery.cancel_scope.cancel()


# --- first commands ---


async def test_pools_of_some_tenants_are_named_to_the_platform_alone(nursery, autojump_clock):
    cluster = FakeCluster()
    pool = make_pool(cluster)
    nursery.start_soon(pool.run, cluster.receive)
    cluster.pool()
    cluster.pool("of-acme", tenants=frozenset({"acme"}))
    cluster.pool("of-zeta", tenants=frozenset({"zeta"}))
    cluster.placeholder()
    for name in ("of-acme", "of-zeta", "gone"):
        cluster.placeholder(pool=name)
    await trio.testing.wait_all_tasks_blocked()
    metrics = Metrics(pool._roster)
    metrics.watch_pool(pool)
    await pool.allocate("acme", request(pool="of-acme"), None)
    await pool.allocate("acme", request(), None)
    told, all_of_it = metrics.render(), metrics.render_all()
    assert b"of-acme" not in told
    assert b"of-zeta" not in told
    assert b"gone" not in told
    assert samples(told, "sandman_pool_wanted") == {("root",): 1, (gauges.OTHER,): 2}
    assert samples(all_of_it, "sandman_pool_wanted") == {
        ("root",): 1, ("of-acme",): 1, ("of-zeta",): 1,
    }  # fmt: skip
    assert samples(told, "sandman_allocations_total") == {
        ("ok", "root", "warm"): 1, ("ok", gauges.OTHER, "warm"): 1,
    }  # fmt: skip
    assert samples(all_of_it, "sandman_allocations_total") == {
        ("ok", "root", "warm"): 1, ("ok", "of-acme", "warm"): 1,
    }  # fmt: skip
    assert samples(told, "sandman_pods")[gauges.OTHER, "free"] == 2
    # What is of no pool is the same in both, and in each once.
    assert told.count(b"# TYPE sandman_errors_total") == 1
    assert all_of_it.count(b"# TYPE sandman_errors_total") == 1


def test_the_first_command_is_counted_once_and_by_the_replica_that_was_asked(monkeypatch):
    one = FirstCommands()
    one.made("a", 10.0)
    one.made("a", 11.0)
    assert one.answered("a", 12.5) == 2.5
    one.made("a", 12.7)
    assert one.answered("a", 13.0) is None
    assert one.answered("made through another replica", 13.0) is None
    monkeypatch.setattr(firsts, "KEPT_MAX", 2)
    for name in "bcd":
        one.made(name, 1.0)
    assert [one.answered(name, 2.0) for name in "bcd"] == [None, 1.0, 1.0]


async def test_the_time_to_the_first_command(nursery, autojump_clock):
    cluster = FakeCluster()
    pool = make_pool(cluster)
    nursery.start_soon(pool.run, cluster.receive)
    cluster.pool()
    await trio.testing.wait_all_tasks_blocked()
    made: Ready = await pool.allocate("acme", request(), None)
    assert isinstance(made.timings, Timings)
    metrics = Metrics(pool._roster)
    metrics.firsts.made(made.instance.id, 5.0)
    for _ in range(2):
        metrics.commanded(made.instance.id, made.instance.tier, 5.25)
    name = "sandman_allocation_first_command_seconds"
    assert samples(metrics.render(), f"{name}_sum") == {("cold",): 0.25}
    assert samples(metrics.render(), f"{name}_count") == {("cold",): 1.0}


# --- names ---


async def test_names_follow_the_conventions(nursery, autojump_clock):
    """https://prometheus.io/docs/practices/naming: a prefix, base units, `_total` on counters alone."""
    cluster = FakeCluster()
    pool = make_pool(cluster)
    metrics = Metrics(pool._roster)
    metrics.watch_pool(pool)
    metrics.watch_writes({("patch", "pods", "ok"): 3}, {"warm": 2})
    metrics.failed("capacity")
    families = list(text_string_to_metric_families(metrics.render_all().decode()))
    assert len({one.name for one in families}) == len(families) >= 16
    for family in families:
        assert re.fullmatch(r"(sandman|process)(_[a-z]+)+", family.name)
        assert family.documentation.endswith(".")
        if family.type == "histogram":
            assert family.name.endswith("_seconds")
        assert not family.name.endswith(("_ms", "_total"))
    assert samples(metrics.render(), "sandman_api_writes_total") == {("pods", "ok", "patch"): 3}
    assert samples(metrics.render(), "sandman_claim_writes_total") == {("warm",): 2}
