"""Metrics that are read from the state when somebody asks, and not kept beside it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Sample

from sandman import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client.core import Metric

    from gateway.attached import Attached
    from gateway.model import Instance
    from gateway.roster import Roster

Labels = TypeVar("Labels", bound=tuple[str, ...])
Family = TypeVar("Family", GaugeMetricFamily, CounterMetricFamily)

TENANTS_MAX = 50
"""Tenants with series of their own: those that wait most; the others are summed up as `OTHER`. A page
of a dashboard shows fewer."""
OTHER = "(other)"
"""No tenant's name and no pool's: a label's value begins with a letter or digit."""


class State:
    """Pods, pools and requests, from the roster."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def collect(self) -> Iterator[Metric]:
        """Prometheus asks."""
        now = self._roster.allocation.statistics()
        yield _family(
            "sandman_requests",
            "Allocations that are not done, by what they wait for.",
            ["state"],
            {("waiting",): now.waiting, ("claiming",): now.claiming, ("cold",): now.cold},
        )
        pods = self._roster.registry.all()
        states = Counter((one.pool, "ended" if one.ending else one.state) for one in pods)
        yield _family("sandman_pods", "Pods, by pool and state.", ["pool", "state"], states)
        yield _gauge("sandman_free_vetted", "Placeholders that may be claimed.", now.free)
        yield from self._pools(pods)

    def _pools(self, pods: Iterable[Instance]) -> Iterator[Metric]:
        roster = self._roster
        vetted = roster.allocation.free()
        free: Counter[str] = Counter()
        held: Counter[str] = Counter()
        skewed: Counter[str] = Counter()
        for one in pods:
            free[one.pool] += one.state == names.STATE_FREE and one.ending is None
            held[one.pool] += one.uid in roster.held
            skewed[one.pool] += one.uid in roster.skewed
        for name, text, counts in (
            ("sandman_pool_free", "Placeholders, running or not yet, by pool.", free),
            ("sandman_pool_vetted", "Placeholders that may be claimed, by pool.", vetted),
            ("sandman_pool_held", "Placeholders that wait to be let start, by pool.", held),
            (
                "sandman_pool_skewed",
                "Placeholders whose daemons are too old or too new for this gateway, by pool.",
                skewed,
            ),
        ):
            yield _family(name, text, ["pool"], {(pool,): counts[pool] for pool in roster.pools})
        wanted = {(pool,): spec.wanted for pool, spec in roster.pools.items()}
        yield _family("sandman_pool_wanted", "Free placeholders wanted, by pool.", ["pool"], wanted)
        broken = {(pool,): int(spec.stopped) for pool, spec in roster.pools.items()}
        text = "Whether the pool was stopped because its placeholders do not come up."
        yield _family("sandman_pool_broken", text, ["pool"], broken)


class Folded:
    """What another collector tells, with pools that are not everybody's as one: their names, and how busy they are,
    are their tenants' business.

    Args:
        collector: tells of each pool.
        is_open: whether every tenant may use, and so know, the pool of this name.
    """

    def __init__(self, collector: State | Counts[Labels], is_open: Callable[[str], bool]) -> None:
        self._collector = collector
        self._is_open = is_open

    def collect(self) -> Iterator[Metric]:
        """Prometheus asks."""
        for family in self._collector.collect():
            sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
            for sample in family.samples:
                labels = dict(sample.labels)
                if "pool" in labels and not self._is_open(labels["pool"]):
                    labels["pool"] = OTHER
                key = sample.name, tuple(labels.items())
                sums[key] = sums.get(key, 0.0) + sample.value
            family.samples = [Sample(name, dict(labels), n) for (name, labels), n in sums.items()]
            yield family


class Networks:
    """Whether network policies are enforced."""

    def __init__(self, enforced: Mapping[str, bool]) -> None:
        self._enforced = enforced

    def collect(self) -> Iterator[Metric]:
        """Prometheus asks."""
        yield _family(
            "sandman_network_enforced",
            "Whether a placeholder reaches nothing of what it must not, by namespace; none while nobody knows.",
            ["namespace"],
            {(namespace,): int(is_so) for namespace, is_so in self._enforced.items()},
        )


class Attachments:
    """Attachments to users' workloads that there are."""

    def __init__(self, attached: Attached) -> None:
        self._attached = attached

    def collect(self) -> Iterator[Metric]:
        """Prometheus asks."""
        yield _gauge(
            "sandman_attachable",
            "Containers of workloads whose daemon can be attached to.",
            len(self._attached.attachable()),
        )
        yield _gauge(
            "sandman_attachments",
            "Attachments to workloads that there are.",
            len(self._attached.attachments()),
        )


class Counts(Generic[Labels]):
    """Counters that are kept elsewhere.

    Args:
        name: of the metric.
        text: what it counts.
        labels: their names.
        read: the counts, by the labels' values.
    """

    def __init__(
        self, name: str, text: str, labels: list[str], read: Callable[[], Mapping[Labels, int]]
    ) -> None:
        self._family = (name, text, labels)
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Prometheus asks."""
        name, text, labels = self._family
        yield _filled(CounterMetricFamily(name, text, labels=labels), self._read())


class Queue:
    """Who waits.

    Args:
        waiting: tenant and seconds so far of each request that waits.
    """

    def __init__(self, waiting: Callable[[], Iterable[tuple[str, float]]]) -> None:
        self._waiting = waiting

    def collect(self) -> Iterator[Metric]:
        """Prometheus asks."""
        lengths, ages = summed(self._waiting())
        yield _family(
            "sandman_queue_length",
            "Requests that wait for a sandbox, by tenant.",
            ["tenant"],
            {(tenant,): count for tenant, count in lengths.items()},
        )
        yield _family(
            "sandman_queue_age_seconds",
            "Age of the oldest request that waits, by tenant.",
            ["tenant"],
            {(tenant,): age for tenant, age in ages.items()},
        )


def summed(waiting: Iterable[tuple[str, float]]) -> tuple[dict[str, int], dict[str, float]]:
    """Requests and the oldest one's age by tenant, of TENANTS_MAX tenants; the rest as `OTHER`."""
    ages: dict[str, list[float]] = {}
    for tenant, age in waiting:
        ages.setdefault(tenant, []).append(age)
    most = sorted(ages, key=lambda tenant: (-len(ages[tenant]), tenant))
    for tenant in most[TENANTS_MAX:]:
        ages.setdefault(OTHER, []).extend(ages.pop(tenant))
    return {t: len(a) for t, a in ages.items()}, {t: max(a) for t, a in ages.items()}


def _family(
    name: str, text: str, labels: list[str], values: Mapping[Labels, float]
) -> GaugeMetricFamily:
    return _filled(GaugeMetricFamily(name, text, labels=labels), values)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _filled(family: Family, values: Mapping[Labels, float]) -> Family:
    for key, value in sorted(values.items()):
        family.add_metric(key, value)
    return family
