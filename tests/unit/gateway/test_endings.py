"""Why a pod ended, and what went wrong with its image, as the gateway reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.model import (
    Ending,
)
from gateway.provider import endings, patches, pods
from sandman import names
from tests.unit.gateway.test_kubernetes_values import deployment, placeholder, pod, running_pod

if TYPE_CHECKING:
    from sandman.service import kube

# --- endings ---


def ended(*, phase="Failed", reason="", message="", terminated=None, disruption=None) -> kube.Pod:
    state = {"terminated": terminated} if terminated else {}
    document = running_pod(phase=phase, reason=reason, message=message)
    document["status"]["containerStatuses"][1]["state"] = state
    if disruption:
        document["status"]["conditions"] = [
            {"type": "DisruptionTarget", "status": "True", "reason": disruption}
        ]
    return pod(document)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"reason": "Evicted", "message": "disk"}, "evicted"),
        ({"reason": "DeadlineExceeded"}, "expired"),
        ({"reason": "Preempting"}, "preempted"),
        ({"reason": "NodeLost"}, "node_lost"),
        ({"disruption": "PreemptionByScheduler"}, "preempted"),
        ({"disruption": "DeletionByTaintManager"}, "node_lost"),
        ({"disruption": "EvictionByEvictionAPI"}, "evicted"),
        ({"terminated": {"reason": "OOMKilled", "exitCode": 137}}, "oom"),
        ({"terminated": {"reason": "Error", "exitCode": 137}}, "died"),
        ({"terminated": {"reason": "Completed", "exitCode": 0}, "phase": "Succeeded"}, "died"),
        ({}, "died"),
    ],
)
def test_why_a_pod_ended(facts, reason):
    ending = endings.of_pod(ended(**facts))
    assert ending is not None
    assert ending.reason == reason
    assert ending.error("s").reason == reason


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
            "sandbox",
        ),
        ('Container main exceeded its local ephemeral storage limit "1Gi". ', "sandbox"),
        ('Usage of EmptyDir volume "scratch" exceeds the limit "1Gi". ', "sandbox"),
        (
            "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi",
            "infrastructure",
        ),
        ("", "infrastructure"),
    ],
)
def test_who_filled_its_own_disk_has_itself_to_blame(message, cause):
    ending = endings.of_pod(ended(reason="Evicted", message=message))
    assert ending is not None
    assert ending.reason == "evicted"
    assert ending.error("s").cause == cause


@pytest.mark.parametrize(
    ("disruption", "deleted", "reason"),
    [
        ("PreemptionByScheduler", True, "preempted"),
        ("DeletionByTaintManager", True, "node_lost"),
        ("EvictionByEvictionAPI", True, "evicted"),
        # Marked, and perhaps spared.
        ("PreemptionByScheduler", False, None),
        (None, True, None),
    ],
)
def test_a_pod_that_is_about_to_go_says_why_before_it_has(disruption, deleted, reason):
    """Of a lost node nobody says that it is gone."""
    document = running_pod()
    if disruption:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": disruption}
        document["status"]["conditions"] = [condition]
    if deleted:
        document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ending = pods.instance(pod(document)).ending
    assert (ending and ending.reason) == reason


def test_a_death_tells_exit_code_and_time():
    ending = endings.of_pod(
        ended(terminated={"reason": "Error", "exitCode": 3, "finishedAt": "2026-01-01T00:00:00Z"})
    )
    assert ending is not None
    assert ending.facts == {"exit_code": 3, "kubelet_reason": "Error"}
    assert ending.at == 1767225600.0
    assert ending.error("s").cause == "sandbox"


@pytest.mark.parametrize(
    ("expires_at", "cause", "at"),
    [
        (1767225600.0 - 700, "caller", 1767225600.0 - 700),
        (1767225600.0 + 3600, "infrastructure", 1767225600.0),
        (None, "caller", 1767225600.0),
    ],
)
def test_a_daemon_that_nobody_reached_says_so_by_its_exit_code(expires_at, cause, at):
    told = {"reason": "Error", "exitCode": names.EXIT_EXPIRED, "finishedAt": "2026-01-01T00:00:00Z"}
    ending = endings.of_pod(ended(terminated=told), expires_at)
    assert ending is not None
    assert (ending.reason, ending.at) == ("expired", at)
    assert ending.error("s").cause == cause


def test_a_pod_that_a_node_refused_is_not_the_sandboxs_fault():
    document = ended()
    document = pod(running_pod(phase="Failed", containerStatuses=[]))
    ending = endings.of_pod(document)
    assert ending is not None
    assert ending.error("s").cause == "infrastructure"


def test_a_running_pod_has_not_ended():
    assert endings.of_pod(pod(running_pod())) is None


def test_a_deleted_pod_says_why_when_a_condition_does():
    assert endings.of_deletion(pod(running_pod())).reason == "deleted"
    late = running_pod()
    late["metadata"]["deletionTimestamp"] = "1970-01-01T00:01:40Z"
    assert endings.of_deletion(pod(late), expires_at=100.0).reason == "expired"
    assert endings.of_deletion(pod(late), expires_at=101.0).reason == "deleted"
    target = ended(phase="Running", disruption="DeletionByPodGC")
    assert endings.of_deletion(target).reason == "node_lost"


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (['Failed to pull image "x": rpc error: code = NotFound desc = failed to resolve reference '
          '"x": x: not found'], "image_not_found"),
        (['Failed to pull image "x": pull access denied, repository does not exist or may require '
          "authorization: server message: insufficient_scope: authorization failed"], "image_denied"),
        (['Failed to pull image "x": unexpected status 401 Unauthorized'], "image_denied"),
        (['Failed to pull image "x": 429 Too Many Requests'], "image_pull"),
        (['Failed to apply default image tag "X": couldn\'t parse image name: invalid reference '
          "format"], "image_not_found"),
        (["Back-off pulling image x", 'Failed to pull image "x": x: not found'], "image_not_found"),
    ],
)  # fmt: skip
def test_what_went_wrong_with_an_image(messages, reason):
    ending = endings.of_image("x", messages)
    assert ending is not None
    assert ending.reason == reason
    assert "image x" in ending.detail


def test_events_that_say_nothing_of_an_image_are_no_explanation():
    assert endings.of_image("x", ["Error: cannot start the container"]) is None
    assert endings.of_image("x", []) is None


def test_a_pod_that_ended_because_it_was_deleted_did_not_die():
    """Its daemon ends with 0 on TERM, so the pod is terminal before it is gone."""
    document = running_pod(phase="Succeeded")
    document["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:01Z"
    status = document["status"]["containerStatuses"][1]
    status["state"] = {"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T01:00:00Z"}}
    assert pods.instance(pod(document)).ending.reason == "expired", "the lease was over long ago"
    document["metadata"]["annotations"].pop(names.ANNOTATION_LEASE)
    assert pods.instance(pod(document)).ending.reason == "deleted"
    # Killed when the grace was over: the same.
    status["state"] = {"terminated": {"exitCode": 137, "finishedAt": "2026-01-01T01:00:01Z"}}
    assert pods.instance(pod(document)).ending.reason == "deleted"
    # It had died before anybody deleted it.
    status["state"] = {"terminated": {"exitCode": 137, "finishedAt": "2026-01-01T00:30:00Z"}}
    assert pods.instance(pod(document)).ending.reason == "died"


def test_what_a_gateway_wrote_on_the_pod_is_the_reason():
    ending = Ending("released", "it was released", at=1000.25)
    one = placeholder()
    [test, add] = patches.ended(one, ending)
    assert test == {"op": "test", "path": "/metadata/uid", "value": one.uid}
    assert add["path"] == "/metadata/annotations/sandman.dev~1ended"
    document = running_pod()
    document["metadata"]["annotations"][names.ANNOTATION_ENDED] = add["value"]
    assert pods.instance(pod(document)).ending == ending


@pytest.mark.parametrize("text", ["", "{", "[]", '{"reason":"nonsense"}', '{"reason":5}'])
def test_what_somebody_else_wrote_there_is_none(text):
    document = running_pod()
    document["metadata"]["annotations"][names.ANNOTATION_ENDED] = text
    assert pods.instance(pod(document)).ending is None


@pytest.mark.parametrize("at", ["1e400", "true", '"x"', "-1", "1e300"])
def test_a_time_that_is_none_is_passed_over(at):
    document = running_pod()
    document["metadata"]["annotations"][names.ANNOTATION_ENDED] = (
        f'{{"reason":"released","at":{at}}}'
    )
    ending = pods.instance(pod(document)).ending
    assert ending is None or ending.at is None


@pytest.mark.parametrize(
    ("annotations", "least", "steps"),
    [
        ({}, None, 0),
        ({"sandman.dev/min": "3", "sandman.dev/prepare": '[{"exec": {"argv": ["a"]}}]'}, 3, 1),
        ({"sandman.dev/min": "-3", "sandman.dev/prepare": "["}, None, 0),
        ({"sandman.dev/min": "1e3", "sandman.dev/prepare": '[{"run": {}}]'}, None, 0),
        ({"sandman.dev/min": "9" * 10, "sandman.dev/prepare": "[" * 100_000}, None, 0),
    ],
)
def test_how_a_pool_is_kept_is_read_from_annotations(annotations, least, steps):
    spec = pods.pool(deployment(**annotations, **{"sandman.dev/network": "open"}))
    assert spec is not None
    assert (spec.least, len(spec.prepare.calls), spec.network) == (least, steps, "open")
