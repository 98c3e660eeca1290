"""`sandman doctor`: whether nodes bound the processes of a pod."""

from __future__ import annotations

import json

import pytest

from sandman.doctor import kubelets
from sandman.doctor.cluster import Cluster, ClusterError
from sandman.doctor.findings import Level


class Nodes(Cluster):
    """Nodes by their kubelets' `podPidsLimit`; None: the kubelet cannot be asked."""

    def __init__(self, **limits: object) -> None:
        super().__init__()
        self.limits = limits
        self.asked: list[str] = []

    def items(self, *_: str) -> list[dict]:
        return [{"metadata": {"name": name}} for name in self.limits]

    def raw(self, path: str) -> str:
        name = path.removeprefix("/api/v1/nodes/").removesuffix("/proxy/configz")
        self.asked.append(name)
        limit = self.limits[name]
        if limit is None:
            raise ClusterError("nodes is forbidden")
        return json.dumps({"kubeletconfig": {} if limit == "" else {"podPidsLimit": limit}})


@pytest.mark.parametrize(
    ("limits", "level", "text"),
    [
        (
            {"a": 4096},
            Level.OK,
            "a pod has 4096 of them at most on the 1 of 1 nodes that were asked",
        ),
        (
            {"a": 4096, "b": 1024},
            Level.OK,
            "a pod has 1024 to 4096 of them at most on the 2 of 2 nodes that were asked",
        ),
        ({"a": -1}, Level.WARNING, "1 of 1 nodes do not bound the processes of a pod: a"),
        ({"a": ""}, Level.WARNING, "1 of 1 nodes do not bound the processes of a pod: a"),
        (
            {"a": 0, "b": 99, "c": 4194304},
            Level.WARNING,
            "2 of 3 nodes do not bound the processes of a pod: a, c",
        ),
        ({"a": None}, Level.SKIPPED, "the kubelet of a was not asked: nodes is forbidden"),
    ],
)
def test_what_kubelets_say(limits: dict, level: Level, text: str) -> None:
    (found,) = kubelets.processes(Nodes(**limits))
    assert (found.level, found.text) == (level, text)
    assert bool(found.advice) == (level is not Level.OK)


def test_of_no_nodes_nothing_is_said() -> None:
    (found,) = kubelets.processes(Nodes())
    assert (found.level, found.text) == (Level.SKIPPED, "there is no node")


def test_of_many_nodes_a_few_are_asked() -> None:
    nodes = Nodes(**{f"n{number}": 4096 for number in range(1000)})
    (found,) = kubelets.processes(nodes)
    assert len(nodes.asked) == kubelets.ASKED
    assert found.text == "a pod has 4096 of them at most on the 8 of 1000 nodes that were asked"
