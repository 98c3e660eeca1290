"""Bodies and parameters → frozen values. Pure; each refusal names the field."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING

from gateway import quantities, sizing, steps
from gateway.choice import DEFAULT_POOL
from gateway.model import COUNT_MAX, NO_AMOUNTS, Amounts, Owner, Purpose, SandboxRequest, Terms
from gateway.workloads import Wanted
from sandman import names, wire
from sandman.errors import BadRequestError, NetworkUnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.config import Settings

DEFAULT_WAIT_S = 60.0
RECORD_MAX_BYTES = 32 * 1024
"""Labels of one sandbox as JSON: they are kept in an annotation, whose pod may have 256 KiB of them."""
PATH_MAX = 4096
"""Characters of a working directory: Linux takes no longer path."""
USER_MAX = 256
"""Characters of a user's name, the most that Linux takes."""
SPAN_LEAST_S = 5.0
"""Seconds of a `ttl_s` or `idle_s` at least: that is how often leases are looked at."""
AVOID_MAX = 16
"""Nodes that a request may name to be kept from: it is there for tries that are made again, of which there are few."""
RUN_TTL_S = 300.0
"""Seconds of a run's lease whose caller names none: a trainer may be held up for minutes, and the sandboxes of
a dead one should not stay for many."""
KEY_MAX = 200
"""Characters of an idempotency key: a UUID has 36, a path through a job's names fits."""

# The grammar of the distribution specification (github.com/distribution/reference), as one pattern.
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_HOST = (
    r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
    r"(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
)
_IMAGE = re.compile(
    rf"(?:{_HOST}/)?(?P<name>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@[A-Za-z][A-Za-z0-9]*:[0-9a-fA-F]{32,})?"
)
IMAGE_MAX = 512


def sandbox_request(body: Mapping[str, object], settings: Settings) -> SandboxRequest:
    """The body of `POST /v1/sandboxes`.

    Raises:
        BadRequestError: names the field at fault.
    """
    reader = wire.Fields(body)
    run = run_name(reader.text("run"))
    terms = _terms(reader.raw("lease"), run, settings)
    request = SandboxRequest(
        image=image(reader.text("image")),
        pool=reader.text("pool") or DEFAULT_POOL,
        env=reader.environment("env"),
        workdir=_workdir(reader.text("workdir")),
        user=_user(reader.text_or_int("user")),
        run=run,
        labels=_labels(reader.raw("labels")),
        max_s=terms.max_s or settings.life_default_s,
        wait_s=wait(reader.seconds("wait_s", zero=True), settings),
        count=reader.count("count", 1, COUNT_MAX, least=1) if reader.has("count") else None,
        gang=reader.flag("gang"),
        resources=_resources(reader.raw("resources")),
        node_class=_label(reader.text("node_class"), "node_class"),
        names_pool=reader.has("pool"),
        purpose=Purpose(reader.choice("purpose", (Purpose.TRAIN, Purpose.EVAL))),
        prepare=steps.parse(reader.raw("prepare")),
        terms=terms,
        owner=_owner(reader.inner("owner")),
        network=network(reader.raw("network")),
        network_wait=reader.flag("network_wait") if reader.has("network_wait") else None,
        avoid_nodes=_nodes(reader.raw("avoid_nodes")),
    )
    reader.finish()
    return request


def _nodes(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not (isinstance(value, list) and len(value) <= AVOID_MAX) or not all(
        isinstance(one, str) and _POD_NAME.fullmatch(one) for one in value
    ):
        raise BadRequestError(
            f"avoid_nodes must be a list of {AVOID_MAX} names of nodes at most", field="avoid_nodes"
        )
    return tuple(sorted(set(value)))


def network(value: object) -> str | None:
    """The name of an egress profile.

    Raises:
        NetworkUnsupportedError: rules are given where a name is meant.
        BadRequestError: it cannot be a name.
    """
    if isinstance(value, (dict, list)):
        raise NetworkUnsupportedError(
            "rules of a caller's own cannot be enforced: NetworkPolicies know no host names, and are not the "
            "gateway's to write. Name an egress profile that the cluster's operator has made",
            field="network",
        )
    if value is not None and not names.is_label(value):
        raise BadRequestError("network must be 1 to 63 of A-Z a-z 0-9 . _ -", field="network")
    return None if value is None else str(value)


def image(text: str | None) -> str | None:
    """An image reference, as it is given.

    Raises:
        BadRequestError: it is none.
    """
    if text is not None and (len(text) > IMAGE_MAX or not _IMAGE.fullmatch(text)):
        raise BadRequestError(
            f"image {text[:80]!r} is not an image reference (host/name:tag or host/name@sha256:…)",
            field="image",
        )
    return text


_POD_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def pod_name(sandbox: str) -> str | None:
    """The name of the pod in a sandbox id; None when it cannot be one: nobody need be asked then."""
    name, _, uid = sandbox.rpartition("-")
    possible = _POD_NAME.fullmatch(name) and re.fullmatch(r"[0-9a-f]{8}", uid)
    return name if possible else None


def run_name(text: str | None) -> str | None:
    """The name of a run.

    Raises:
        BadRequestError: it cannot be a label's value.
    """
    if text is not None and not names.is_label(text):
        raise BadRequestError("run must be 1 to 63 of A-Z a-z 0-9 . _ -", field="run")
    return text


STATES = ("living", "ended")


def list_query(pairs: Sequence[tuple[str, str]]) -> tuple[str | None, bool]:
    """The query of `GET /v1/sandboxes`: the run, or None for all; whether those that have ended are meant.

    Who misspells it must not be shown, and perhaps then release, everything.

    Raises:
        BadRequestError: another parameter, or the same one twice.
    """
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in {"run", "state"}:
            raise BadRequestError(
                f"unknown parameter {name[:64]!r}; known: run, state", field=name[:64]
            )
        if name in found:
            raise BadRequestError(f"{name} was given more than once", field=name)
        found[name] = value
    state = found.get("state", STATES[0])
    if state not in STATES:
        raise BadRequestError(f"state is one of {', '.join(STATES)}", field="state")
    return run_name(found.get("run")), state == "ended"


def attachable_query(pairs: Sequence[tuple[str, str]]) -> str | None:
    """The query of `GET /v1/sandboxes?attachable`: the namespace, or None for all.

    Raises:
        BadRequestError: another parameter, or the same one twice.
    """
    given: dict[str, str] = {}
    for name, value in pairs:
        if name not in {"attachable", "namespace"} or name in given:
            raise BadRequestError(
                f"parameter {name[:64]!r} is unknown, or given twice; known: attachable, namespace",
                field=name[:64],
            )
        given[name] = value
    return given.get("namespace")


def attach_request(body: Mapping[str, object], settings: Settings) -> Wanted:
    """The body of `POST /v1/sandboxes/attach`.

    Raises:
        BadRequestError: names the field at fault.
    """
    reader = wire.Fields(body)
    namespace, pod = reader.text("namespace"), reader.text("pod")
    if not namespace:
        raise BadRequestError("namespace must be that of the workload", field="namespace")
    selector = _labels(reader.raw("selector"), "selector")
    run = run_name(reader.text("run"))
    if (pod is None) == (not selector):
        raise BadRequestError("give either pod or selector", field="pod")
    wanted = Wanted(
        namespace=namespace,
        pod=pod,
        selector=selector,
        container=reader.text("container"),
        terms=_terms(reader.raw("lease"), run, settings),
        env=reader.environment("env"),
        workdir=_workdir(reader.text("workdir")),
        user=_user(reader.text_or_int("user")),
        run=run,
        labels=_labels(reader.raw("labels")),
    )
    reader.finish()
    return wanted


def idempotency_key(text: str | None) -> str | None:
    """The header's value.

    Raises:
        BadRequestError: empty or too long.
    """
    if text is not None and not 0 < len(text) <= KEY_MAX:
        raise BadRequestError(
            f"{names.HEADER_IDEMPOTENCY_KEY} must have 1 to {KEY_MAX} characters",
            field=names.HEADER_IDEMPOTENCY_KEY,
        )
    return text


def _workdir(text: str | None) -> str | None:
    if text is not None and not (text.startswith("/") and len(text) <= PATH_MAX):
        raise BadRequestError(
            f"workdir must be an absolute path of {PATH_MAX} characters at most", field="workdir"
        )
    return text


def _user(user: str | int | None) -> str | int | None:
    if len(str(user)) > USER_MAX:
        raise BadRequestError(f"user has over {USER_MAX} characters", field="user")
    return user


def _labels(value: object, field: str = "labels") -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise BadRequestError(f"{field} must be an object of strings", field=field)
    if len(json.dumps(value)) > RECORD_MAX_BYTES:
        raise BadRequestError(f"{field} are over {RECORD_MAX_BYTES} bytes as JSON", field=field)
    return tuple(sorted(value.items()))


def _resources(value: object) -> Amounts:
    """`{"cpu": "500m", "memory": "2Gi"}`, each optional: what the sandbox may use."""
    if value is None:
        return NO_AMOUNTS
    if not isinstance(value, dict):
        raise BadRequestError("resources must be an object", field="resources")
    reader = wire.Fields(value, "resources.")
    cpu, memory = reader.raw("cpu"), reader.raw("memory")
    reader.finish()
    return Amounts(
        _amount("cpu", cpu, quantities.millicores(cpu), sizing.CPU_LEAST, sizing.CPU_MOST),
        _amount(
            "memory", memory, quantities.bytes_of(memory), sizing.MEMORY_LEAST, sizing.MEMORY_MOST
        ),
    )


def _amount(name: str, given: object, amount: int | None, least: int, most: int) -> int | None:
    if given is None:
        return None
    field = f"resources.{name}"
    if amount is None:
        raise BadRequestError(
            f"{field} must be a Kubernetes quantity, as 2, 500m or 4Gi", field=field
        )
    if not least <= amount <= most:
        text = quantities.cpu_text if name == "cpu" else quantities.memory_text
        raise BadRequestError(f"{field} must be {text(least)} to {text(most)}", field=field)
    return amount


def _label(text: str | None, field: str) -> str | None:
    if text is not None and not names.is_label(text):
        raise BadRequestError(f"{field} must be 1 to 63 of A-Z a-z 0-9 . _ -", field=field)
    return text


def _terms(value: object, run: str | None, settings: Settings) -> Terms:
    if value is None:
        return Terms(max_s=settings.life_default_s)
    if not isinstance(value, dict):
        raise BadRequestError("lease must be an object", field="lease")
    reader = wire.Fields(value, "lease.")
    terms = Terms(
        ttl_s=_span(reader, "ttl_s", settings),
        idle_s=_span(reader, "idle_s", settings),
        max_s=_within(reader, "max_s", settings) or settings.life_default_s,
        of_run=reader.flag("run"),
    )
    reader.finish()
    if terms.of_run and run is None:
        raise BadRequestError("a lease of the run needs a `run`", field="lease.run")
    if terms.of_run and terms.ttl_s is None:
        return dataclasses.replace(terms, ttl_s=RUN_TTL_S)
    return terms


def _span(reader: wire.Fields, name: str, settings: Settings) -> float | None:
    asked = _within(reader, name, settings)
    if asked is not None and asked < SPAN_LEAST_S:
        raise BadRequestError(
            f"lease.{name} is below {SPAN_LEAST_S:g} s, the time between two looks",
            field=f"lease.{name}",
        )
    return asked


def _within(reader: wire.Fields, name: str, settings: Settings) -> float | None:
    asked = reader.seconds(name)
    if asked is not None and asked > settings.life_max_s:
        raise BadRequestError(
            f"lease.{name} is over the longest life of {settings.life_max_s:g} s",
            field=f"lease.{name}",
        )
    return asked


def heartbeat(body: Mapping[str, object], settings: Settings) -> float:
    """The body of `POST /v1/runs/{run}/heartbeat`: for how many seconds its caller means to be silent at most.

    Raises:
        BadRequestError: names the field at fault.
    """
    reader = wire.Fields(body)
    asked = reader.seconds("ttl_s")
    reader.finish()
    if asked is not None and asked > settings.life_max_s:
        raise BadRequestError(f"ttl_s is over {settings.life_max_s:g} s", field="ttl_s")
    return asked or RUN_TTL_S


def _owner(reader: wire.Fields | None) -> Owner | None:
    if reader is None:
        return None
    reader.choice("kind", ("Job",))
    name, namespace = reader.text("name"), reader.text("namespace")
    owner = Owner(namespace or "", name or "", reader.text("uid"))
    reader.finish()
    if not _POD_NAME.fullmatch(owner.name):
        raise BadRequestError("owner.name is the name of a Job", field="owner.name")
    return owner


def wait(asked: float | None, settings: Settings) -> float:
    """Seconds that a caller waits.

    Raises:
        BadRequestError: over the longest.
    """
    if asked is not None and asked > settings.wait_max_s:
        raise BadRequestError(
            f"wait_s is over the longest wait of {settings.wait_max_s:g} s", field="wait_s"
        )
    return DEFAULT_WAIT_S if asked is None else asked


def ask_query(pairs: Sequence[tuple[str, str]], settings: Settings) -> float:
    """The query of `GET /v1/requests/{id}`: `wait_s`, 0 when it is not given.

    Raises:
        BadRequestError: another parameter, or no number of seconds.
    """
    for name, _ in pairs:
        if name != "wait_s":
            raise BadRequestError(
                f"unknown parameter {name[:64]!r}; known: wait_s", field=name[:64]
            )
    if not pairs:
        return 0.0
    try:
        asked = float(pairs[-1][1])
    except ValueError:
        asked = -1.0
    if not asked >= 0:
        raise BadRequestError("wait_s must be a number of seconds, 0 or more", field="wait_s")
    return wait(asked, settings)
