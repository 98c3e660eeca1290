"""Which pool serves a request: the one that it names, or the smallest that fits."""

from __future__ import annotations

import pytest

from gateway import choice
from gateway.choice import Asked
from gateway.model import Amounts, Bounds, PoolSpec, Purpose, SandboxRequest, Share
from sandman.errors import BadRequestError, NetworkDeniedError

GI = 1024**3


def pool(name: str, cpu: int | None = None, memory: int | None = None, **changes) -> PoolSpec:
    limits = Amounts(cpu, None if memory is None else memory * GI)
    half = Amounts(*(None if one is None else one // 2 for one in limits))
    values = {"choose": True, "bounds": Bounds(half, limits), "image": "base", "swap": True}
    return PoolSpec("ns", name, wanted=1, most=None, **(values | changes))


def pools(*specs: PoolSpec) -> dict[str, PoolSpec]:
    return {spec.name: spec for spec in specs}


def asked(cpu: int | None = None, memory: int | None = None, **more) -> Asked:
    return Asked(resources=Amounts(cpu, None if memory is None else memory * GI), **more)


def request(**changes) -> SandboxRequest:
    values = {"image": None, "pool": "root", "max_s": 60.0, "wait_s": 1.0, "names_pool": False}
    return SandboxRequest(**(values | changes))


SIZES = pools(pool("large", 8000, 32), pool("root", 2000, 4), pool("small", 500, 1))


@pytest.mark.parametrize(
    ("wish", "chosen"),
    [
        (asked(), "root"),
        (asked(500), "small"),
        (asked(501), "root"),
        (asked(memory=2), "root"),
        (asked(500, 5), "large"),
        (asked(8000, 32), "large"),
    ],
)
def test_the_smallest_that_fits(wish, chosen):
    assert choice.choose(wish, SIZES).name == chosen


def test_none_fits():
    with pytest.raises(
        BadRequestError, match="pool large gives cpu 8, memory 32Gi at most"
    ) as caught:
        choice.choose(asked(9000), SIZES)
    assert caught.value.field == "resources"


def test_where_none_fits_the_largest_that_may_grow_grows():
    growing = pools(
        pool("root", 2000, 4, resize=True),
        pool("small", 500, 1, resize=True),
        pool("fixed", 4000, 8),
    )
    assert choice.choose(asked(5000), growing).name == "root"
    # A pool that fits needs no second write.
    assert choice.choose(asked(3000), growing).name == "fixed"
    unnamed = pools(pool("root", resize=True))
    assert choice.choose(asked(5000), unnamed).name == "root"
    no_memory = pools(pool("root", 2000, resize=True))
    assert choice.may_resize(no_memory["root"], Amounts(3000))
    assert not choice.may_resize(no_memory["root"], Amounts(3000, GI))


def test_pools_are_chosen_that_say_so_and_the_default_one():
    known = pools(pool("root", 2000, 4, choose=False), pool("restricted", 500, 1, choose=False))
    assert choice.choose(asked(500), known).name == "root"
    assert choice.choose(asked(500), pools(pool("other", 500, 1))).name == "other"
    with pytest.raises(BadRequestError, match="no pool 'root'; there are: restricted") as caught:
        choice.choose(asked(), pools(pool("restricted", choose=False)))
    assert caught.value.field == "pool"
    with pytest.raises(BadRequestError, match="there are: none"):
        choice.choose(asked(), {})


def test_a_pool_that_runs_the_image_comes_first_among_equals():
    known = pools(
        pool("root", 2000, 4),
        pool("task", 2000, 4, image="task:1"),
        pool("big", 4000, 8, image="task:1"),
    )
    assert choice.choose(asked(image="task:1"), known).name == "task"
    assert choice.choose(asked(1000, image="task:1"), known).name == "task"
    assert choice.choose(asked(1000, image="other:1"), known).name == "root"
    assert choice.choose(asked(), known).name == "root"


def test_a_pool_that_swaps_no_image_serves_its_own_alone():
    known = pools(pool("root", 2000, 4), pool("task", 500, 1, image="task:1", swap=False))
    assert choice.choose(asked(500, image="task:1"), known).name == "task"
    assert choice.choose(asked(500, image="other:1"), known).name == "root"


def test_the_class_of_nodes():
    known = pools(pool("root", 2000, 4), pool("gpu", 4000, 8, node_class="gpu"))
    assert choice.choose(asked(node_class="gpu"), known).name == "gpu"
    assert choice.choose(asked(1000), known).name == "root"
    with pytest.raises(
        BadRequestError, match=r"class gpu.*class \(none\)|class \(none\).*class gpu"
    ) as caught:
        choice.choose(asked(node_class="arm"), known)
    assert caught.value.field == "node_class"


def test_a_named_pool_is_taken_when_it_can_give_what_was_asked():
    named = request(pool="small", names_pool=True, resources=Amounts(500))
    assert choice.pool_of(named, SIZES).name == "small"
    for changes, field in (
        ({"resources": Amounts(501)}, "resources"),
        ({"node_class": "gpu"}, "node_class"),
        ({"pool": "none"}, "pool"),
    ):
        with pytest.raises(BadRequestError) as caught:
            choice.pool_of(request(**{"pool": "small", "names_pool": True, **changes}), SIZES)
        assert caught.value.field == field
    assert choice.pool_of(request(resources=Amounts(5000)), SIZES).name == "large"


def test_a_pool_that_was_stopped_is_chosen_only_where_there_is_no_other():
    known = pools(pool("root", stopped=True), pool("big", 9000, 9))
    assert choice.choose(asked(), known).name == "big"
    assert choice.choose(asked(), pools(pool("root", stopped=True))).name == "root"
    assert choice.pool_of(request(names_pool=True), known).name == "root"


OPEN = frozenset({"open"})


def test_a_pool_that_lets_the_egress_profile_be_asked_for_is_chosen():
    both = pools(pool("root"), pool("wide", networks=OPEN))
    assert choice.choose(Asked(network="open"), both).name == "wide"
    assert choice.choose(Asked(network="none"), both).name == "root"
    assert choice.choose(Asked(), pools(pool("root"), pool("own", network="open"))).name == "root"
    assert choice.choose(Asked(network="open"), pools(pool("root", network="open"))).name == "root"
    assert choice.choose(Asked(network="x"), pools(pool("root", networks={"*"}))).name == "root"


def test_where_none_does_the_caller_hears_that_and_nothing_else():
    both = pools(pool("root"), pool("other", networks=frozenset({"model"})))
    with pytest.raises(NetworkDeniedError, match="'open'"):
        choice.choose(Asked(network="open"), both)
    with pytest.raises(NetworkDeniedError, match="it lets: model, none"):
        choice.pool_of(request(pool="other", names_pool=True, network="open"), both)
    # With another reason beside it, both are told.
    with pytest.raises(BadRequestError, match="no pool can give this"):
        choice.choose(
            asked(9000, network="open"), pools(pool("root", 2000, 4, networks=OPEN), pool("b"))
        )


@pytest.mark.parametrize(
    ("name", "spec", "share", "network"),
    [
        (None, pool("root"), Share(), "none"),
        (None, pool("root", network="open"), Share(), "open"),
        ("none", pool("root", network="open"), Share(networks=()), "none"),
        ("open", pool("root", networks=OPEN), Share(networks=("open",)), "open"),
        ("open", pool("root", networks=OPEN), Share(networks=("*",)), "open"),
        # Of a pool that is gone nobody knows what it let be had: closing is always possible.
        ("none", None, Share(), "none"),
        (None, None, Share(), "none"),
    ],
)
def test_the_egress_profile_that_a_sandbox_gets(name, spec, share, network):
    assert choice.network_of(name, spec, share) == network


@pytest.mark.parametrize(
    ("name", "spec", "share"),
    [
        ("open", pool("root"), Share()),
        ("open", pool("root", networks=OPEN), Share(networks=())),
        (None, pool("root", network="open"), Share(networks=("model",))),
        ("open", None, Share()),
    ],
)
def test_what_it_does_not_get(name, spec, share):
    with pytest.raises(NetworkDeniedError):
        choice.network_of(name, spec, share)


EVAL, AHEAD = Purpose.EVAL, Purpose.AHEAD
JUDGED = pools(pool("root", 2000, 4), pool("eval", 1000, 2, evaluates=True))


def test_an_evaluation_gets_a_pool_of_its_own_where_one_fits():
    assert choice.choose(asked(purpose=EVAL), JUDGED).name == "eval"
    # Also where another runs the image, is smaller, or needs no resize.
    small = pool("small", 500, 1, image="task")
    growing = pool("eval", 1000, 2, evaluates=True, resize=True)
    assert choice.choose(asked(1500, image="task", purpose=EVAL), pools(small, growing)) == growing
    # What it cannot give, another gives: the sandbox tells that it is not controlled.
    assert choice.choose(asked(2000, purpose=EVAL), JUDGED).name == "root"
    gone = pools(JUDGED["root"], pool("eval", 1000, 2, evaluates=True, stopped=True))
    assert choice.choose(asked(purpose=EVAL), gone).name == "root"
    hidden = pools(JUDGED["root"], pool("eval", 1000, 2, evaluates=True, choose=False))
    assert choice.choose(asked(purpose=EVAL), hidden).name == "root"


def test_nothing_else_gets_one():
    assert choice.choose(asked(500), JUDGED).name == "root"
    assert choice.choose(asked(purpose=AHEAD), JUDGED).name == "root"
    with pytest.raises(BadRequestError, match="no pool can give this") as caught:
        choice.choose(asked(3000), JUDGED)
    assert "pool eval" not in caught.value.detail
    alone = pools(pool("root", 1000, 2, evaluates=True))
    for purpose in (Purpose.TRAIN, AHEAD):
        with pytest.raises(BadRequestError, match="no pool 'root'"):
            choice.choose(asked(purpose=purpose), alone)


def test_who_names_one_must_mean_it():
    with pytest.raises(BadRequestError, match="pool eval is for evaluations") as caught:
        choice.pool_of(request(pool="eval", names_pool=True), JUDGED)
    assert caught.value.field == "pool"
    for purpose in (EVAL, AHEAD):
        named = request(pool="eval", names_pool=True, purpose=purpose)
        assert choice.pool_of(named, JUDGED).name == "eval"
    # And one who names another gets that.
    named = request(names_pool=True, purpose=EVAL)
    assert choice.pool_of(named, JUDGED).name == "root"
