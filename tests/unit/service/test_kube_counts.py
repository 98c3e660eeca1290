"""Writes are counted by what they are about and what came of them."""

from __future__ import annotations

import pytest
import trio

from sandman.service import kube
from sandman.service.kube.counts import Counts, resource_of
from tests.fakes.api_server import ApiServer
from tests.fakes.objects import placeholder


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("/api/v1/namespaces/ns/pods", "pods"),
        ("/api/v1/namespaces/ns/pods/p", "pods"),
        ("/api/v1/namespaces/ns/pods/p/resize", "pods/resize"),
        ("/api/v1/nodes/n1", "nodes"),
        ("/api/v1/namespaces/ns", "namespaces"),
        ("/apis/apps/v1/namespaces/ns/deployments/d/scale", "deployments/scale"),
        ("/apis/coordination.k8s.io/v1/namespaces/ns/leases/l", "leases"),
    ],
)
def test_the_resource_of_a_path(path: str, resource: str) -> None:
    assert resource_of(path) == resource


async def test_each_attempt_counts_and_reads_do_not():
    server = ApiServer()
    async with server.client() as api:
        server.put("pods", placeholder("p"))
        await api.get(kube.PODS, "p", namespace="sandman-sandboxes")
        operations = [{"op": "add", "path": "/metadata/labels/x", "value": "1"}]
        await api.patch_json(kube.PODS, "p", operations, namespace="sandman-sandboxes")
        operations = [{"op": "test", "path": "/metadata/labels/x", "value": "2"}]
        with pytest.raises(kube.InvalidError):
            await api.patch_json(kube.PODS, "p", operations, namespace="sandman-sandboxes")
        await api.delete(kube.PODS, "p", namespace="sandman-sandboxes")
        assert api.counts.writes == {
            ("patch", "pods", "ok"): 1,
            ("patch", "pods", "422"): 1,
            ("delete", "pods", "ok"): 1,
        }


def test_a_write_whose_caller_went_away_counts_as_without_an_answer() -> None:
    counts = Counts()
    for error in (trio.TooSlowError(), kube.UnavailableError("lost")):
        with pytest.raises(type(error)), counts.of("POST", "/api/v1/namespaces/ns/pods"):
            raise error
    assert counts.writes == {("create", "pods", "none"): 2}
