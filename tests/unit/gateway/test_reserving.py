"""What a reservation needs next: the rules, and that they never make too many."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from gateway import reserving, steps
from gateway.reserving import Progress, Reservation, Trouble
from sandman.errors import ImagePullError, PrepareFailedError, QuotaError

STEPS = steps.parse([{"exec": {"argv": ["make"]}}])


def reservation(**changes) -> Reservation:
    values = {
        "id": "r1", "tenant": "acme", "key_id": "k", "image": "i:1", "pool": "root", "count": 20,
        "until": 1000.0, "created_at": 0.0, "steps": STEPS,
    }  # fmt: skip
    return Reservation(**(values | changes))


def progress(ready: int = 0, preparing: int = 0, trouble: Trouble | None = None) -> Progress:
    return Progress(ready, preparing, trouble or Trouble())


def test_the_first_goes_alone_and_then_all_of_the_rest():
    assert reserving.to_begin(reservation(), progress(), 0.0) == 1
    assert reserving.to_begin(reservation(), progress(preparing=1), 0.0) == 0
    assert reserving.to_begin(reservation(), progress(ready=1), 0.0) == 19
    assert reserving.to_begin(reservation(count=500), progress(ready=1), 0.0) == reserving.AT_ONCE
    assert reserving.to_begin(reservation(), progress(ready=19, preparing=1), 0.0) == 0


def test_what_was_handed_out_is_not_made_again_and_what_was_lost_is():
    assert reserving.to_begin(reservation(used=20), progress(), 0.0) == 0
    assert reserving.to_begin(reservation(used=15), progress(ready=3), 0.0) == 2


def test_nothing_is_begun_at_the_end():
    assert reserving.to_begin(reservation(), progress(ready=1), 999.9) == 19
    assert reserving.to_begin(reservation(), progress(ready=1), 1000.0) == 0


def test_failures_pause_longer_and_longer_and_a_success_ends_that():
    trouble = Trouble()
    waits = []
    for _ in range(8):
        trouble = trouble.after(ImagePullError("throttled"), 100.0)
        waits.append(trouble.not_before - 100.0)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    assert not trouble.is_final
    assert (trouble.count, len(trouble.failures)) == (8, reserving.TOLD_MAX)
    state = progress(ready=5, trouble=trouble)
    assert reserving.to_begin(reservation(), state, 129.9) == 0
    assert reserving.to_begin(reservation(), state, 130.0) == 1
    better = progress(ready=6, trouble=trouble.after_success())
    assert reserving.to_begin(reservation(), better, 130.0) == 14
    assert better.trouble.count == 8


def test_a_longer_wait_that_was_told_is_kept():
    assert Trouble().after(QuotaError("used up", retry_after=5.0), 0.0).not_before == 5.0


def test_the_callers_own_failures_end_the_tries():
    trouble = Trouble()
    for _ in range(reserving.FAILURES_MAX):
        assert not trouble.is_final
        trouble = trouble.after(PrepareFailedError("step 0", facts={"exit_code": 1}), 0.0)
    assert trouble.is_final
    assert reserving.to_begin(reservation(), progress(trouble=trouble), 900.0) == 0
    assert reserving.state(reservation(), progress(trouble=trouble)) == "failed"
    assert trouble.failures[-1].facts == {"exit_code": 1}
    # A quota is the caller's fault, too, and passes.
    assert not trouble.after(QuotaError("x"), 0.0).is_final


def test_the_state_tells_when_all_is_there():
    assert reserving.state(reservation(), progress(ready=19)) == "preparing"
    assert reserving.state(reservation(used=1), progress(ready=19)) == "ready"
    assert reserving.state(reservation(used=20), progress()) == "ready"


def test_the_same_is_what_was_asked_for_and_not_when():
    one = reservation()
    assert one.is_same(dataclasses.replace(one, created_at=5.0, until=7.0, used=3))
    for change in ({"count": 3}, {"steps": steps.NO_STEPS}, {"run": "r"}, {"image": "i:2"}):
        assert not one.is_same(dataclasses.replace(one, **change))


@given(
    count=st.integers(1, 100),
    events=st.lists(st.sampled_from(["round", "ok", "fail", "lose", "use"])),
)
def test_whatever_happens_there_are_never_more_than_asked_for(count, events):
    one, ready, preparing, trouble, now = reservation(count=count), 0, 0, Trouble(), 0.0
    handed_out = 0
    for event in events:
        now += 1.0
        if event == "round":
            preparing += reserving.to_begin(one, Progress(ready, preparing, trouble), now)
        elif event == "ok" and preparing:
            preparing, ready, trouble = preparing - 1, ready + 1, trouble.after_success()
        elif event == "fail" and preparing:
            preparing, trouble = preparing - 1, trouble.after(ImagePullError("x"), now)
        elif event == "lose" and ready:
            ready -= 1
        elif event == "use" and ready:
            ready, handed_out = ready - 1, handed_out + 1
            one = dataclasses.replace(one, used=handed_out)
        assert handed_out + ready + preparing <= count
        assert preparing <= reserving.AT_ONCE
