"""Which pool serves a request that names none, and whether the one that it names can. Pure.

Chosen are pools that say so (`sandman.dev/choose`), and the default one: what else tells pools apart
(security context, pull secrets, runtime class) is nothing that a caller should get by accident.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from gateway import sizing
from gateway.model import NO_AMOUNTS, Amounts, Purpose
from gateway.profiles import is_listed
from sandman.errors import BadRequestError, NetworkDeniedError
from sandman.names import NETWORK_NONE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.model import PoolSpec, SandboxRequest, Share
    from sandman.errors import CallerError

DEFAULT_POOL = "root"


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """What a pool is chosen by."""

    image: str | None = None
    resources: Amounts = NO_AMOUNTS
    node_class: str | None = None
    network: str | None = None
    purpose: Purpose = Purpose.TRAIN


def pool_of(request: SandboxRequest, pools: Mapping[str, PoolSpec]) -> PoolSpec:
    """The pool that serves this request.

    Raises:
        BadRequestError: there is no such pool, it cannot give this, or none can.
        NetworkDeniedError: the pool, or each, does not let the egress profile be asked for.
    """
    asked = Asked(
        request.image, request.resources, request.node_class, request.network, request.purpose
    )
    if request.names_pool:
        spec = _named(request.pool, pools)
        lacking = why_not(spec, asked)
        if lacking is not None:
            raise lacking
        return spec
    return choose(asked, pools)


def _named(name: str, pools: Mapping[str, PoolSpec]) -> PoolSpec:
    spec = pools.get(name)
    if spec is None:
        known = ", ".join(sorted(pools)) or "none"
        raise BadRequestError(f"no pool {name!r}; there are: {known}", field="pool")
    return spec


def choose(asked: Asked, pools: Mapping[str, PoolSpec]) -> PoolSpec:
    """The best pool: of those that fit without a resize the smallest, then one that runs this image. An evaluation
    gets one that is for evaluations alone, where one fits; nothing else gets such a one.

    Raises:
        BadRequestError: none fits.
    """
    candidates = [
        spec
        for name, spec in pools.items()
        if (spec.choose or name == DEFAULT_POOL)
        and (spec.swap or name == DEFAULT_POOL or asked.image in (None, spec.image))
        and (asked.purpose is Purpose.EVAL or not spec.evaluates)
    ]
    if not candidates:
        return _named(DEFAULT_POOL, {n: spec for n, spec in pools.items() if not spec.evaluates})
    fitting = [spec for spec in candidates if why_not(spec, asked) is None]
    if not fitting:
        errors = [error for spec in candidates if (error := why_not(spec, asked)) is not None]
        if all(isinstance(error, NetworkDeniedError) for error in errors):
            raise errors[0]
        raise BadRequestError(
            "no pool can give this: " + "; ".join(error.detail for error in errors),
            field=errors[0].field,
        )
    # One that was stopped is chosen where there is no other: then the caller hears why. An evaluation outside of
    # its pools is told that it is not controlled; that is better than none.
    going = [spec for spec in fitting if not spec.stopped] or fitting
    return min(going, key=lambda spec: _rank(spec, asked))


def why_not(spec: PoolSpec, asked: Asked) -> CallerError | None:
    """Why this pool cannot serve such a request; None when it can."""
    if spec.evaluates and asked.purpose is Purpose.TRAIN:
        return BadRequestError(
            f'pool {spec.name} is for evaluations: ask with "purpose": "eval"', field="pool"
        )
    if asked.network is not None and not has_network(spec, asked.network):
        return _denied(spec, asked.network)
    if asked.node_class not in (None, spec.node_class):
        return BadRequestError(
            f"pool {spec.name} is on nodes of the class {spec.node_class or '(none)'}",
            field="node_class",
        )
    if sizing.fits(spec.bounds, asked.resources) or may_resize(spec, asked.resources):
        return None
    most = sizing.texts(spec.bounds.limits)
    shown = ", ".join(f"{name} {value}" for name, value in most.items())
    return BadRequestError(f"pool {spec.name} gives {shown} at most", field="resources")


def has_network(spec: PoolSpec, network: str) -> bool:
    """Whether a sandbox of the pool may have this egress profile."""
    return network == spec.network or is_listed(network, spec.networks)


def network_of(asked: str | None, spec: PoolSpec | None, share: Share) -> str:
    """The egress profile that a sandbox gets.

    Args:
        asked: the one that its caller names; None for the pool's own.
        spec: its pool; None for one that is gone, where it can only be closed.
        share: what its tenant may have.

    Raises:
        NetworkDeniedError: the pool or the key does not let it be had.
    """
    network = asked or (NETWORK_NONE if spec is None else spec.network)
    if spec is None and network != NETWORK_NONE:
        raise NetworkDeniedError(
            "the sandbox's pool is gone, and with it who may have which network"
        )
    if spec is not None and not has_network(spec, network):
        raise _denied(spec, network)
    if not is_listed(network, share.networks):
        there = ", ".join(sorted({NETWORK_NONE, *(share.networks or ())}))
        raise NetworkDeniedError(
            f"the egress profile {network!r} is not among those that this API key may use: {there}",
            field="network",
        )
    return network


def _denied(spec: PoolSpec, network: str) -> NetworkDeniedError:
    there = ", ".join(sorted({NETWORK_NONE, spec.network, *spec.networks}))
    return NetworkDeniedError(
        f"pool {spec.name} does not let the egress profile {network!r} be asked for; it lets: {there}",
        field="network",
    )


def may_resize(spec: PoolSpec, asked: Amounts) -> bool:
    """Whether the pool's pods may be given other resources than the template's."""
    return spec.resize and sizing.can_resize(spec.bounds, asked)


def _rank(spec: PoolSpec, asked: Asked) -> tuple[object, ...]:
    return spec.evaluates < (asked.purpose is Purpose.EVAL), *_by_size(spec, asked)


def _by_size(spec: PoolSpec, asked: Asked) -> tuple[object, ...]:
    runs_it = asked.image is not None and spec.image == asked.image
    if asked.resources == NO_AMOUNTS:
        return not runs_it, spec.name != DEFAULT_POOL, _size(spec), spec.name
    fits = sizing.fits(spec.bounds, asked.resources)
    # Of those that are too small the largest: it has the least to grow.
    size = _size(spec) if fits else tuple(-one for one in _size(spec))
    return not fits, size, not runs_it, spec.name != DEFAULT_POOL, spec.name


def _size(spec: PoolSpec) -> tuple[float, ...]:
    return tuple(math.inf if limit is None else limit for limit in spec.bounds.limits)
