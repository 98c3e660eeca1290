"""`sandman inject`: what it writes into pod templates, in files and in a cluster."""

from __future__ import annotations

import builtins
import json
import sys

import pytest
import yaml
from click.testing import CliRunner

from sandman import entrypoints
from sandman.cli import main, templates
from tests.unit.client.fake_registry import FakeRegistry, registry

LABEL, COMMANDS = "sandman.dev/inject", "sandman.dev/commands"

KUBECTL = """#!{python}
# A cluster with one object, in a file; kubectl's errors for what it does not know.
import json, pathlib, sys
store = pathlib.Path({store!r})
arguments = sys.argv[1:]
pathlib.Path({log!r}).open("a").write(json.dumps(arguments) + "\\n")
def merge(into, patch):
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict):
            merge(into.setdefault(key, {{}}), value)
        else:
            into[key] = value
if "namespace" in arguments:
    labels = store.with_name("namespace.json")
    if not labels.exists():
        sys.exit("Error from server (Forbidden): namespaces is forbidden")
    print(json.dumps({{"metadata": {{"labels": json.loads(labels.read_text())}}}}))
    sys.exit()
if not store.exists():
    sys.exit('Error from server (NotFound): deployments.apps "web" not found')
document = json.loads(store.read_text())
if "patch" in arguments:
    merge(document, json.loads(arguments[-1]))
    store.write_text(json.dumps(document))
print(json.dumps(document))
"""


@pytest.fixture
def fake():
    with registry() as one:
        yield one


def container(image: str, name: str = "app", **more) -> dict:
    return {"name": name, "image": image, **more}


def template(*containers: dict, **metadata) -> dict:
    return {
        "metadata": {"labels": {"app": "x"}, **metadata},
        "spec": {"containers": list(containers)},
    }


def deployment(*containers: dict, **metadata) -> dict:
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 2, "template": template(*containers, **metadata)},
    }  # fmt: skip


class Shop:
    """The verb as a user calls it, with a home, a registry and a cluster of one object."""

    def __init__(self, tmp_path, fake: FakeRegistry) -> None:
        self.store, self.log = tmp_path / "object.json", tmp_path / "log"
        self.environ = {"HOME": str(tmp_path), "PATH": str(tmp_path)}
        self.fake = fake
        script = KUBECTL.format(python=sys.executable, store=str(self.store), log=str(self.log))
        (tmp_path / "kubectl").write_text(script)
        (tmp_path / "kubectl").chmod(0o755)

    def image(self, name: str) -> str:
        return f"{self.fake.host}/{name}"

    def call(self, *arguments: str, **options):
        return CliRunner(env=self.environ).invoke(main, ["inject", *arguments], **options)

    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def shop(tmp_path, fake: FakeRegistry) -> Shop:
    fake.image("web", "1", Entrypoint=["/e"], Cmd=["a"])
    return Shop(tmp_path, fake)


def told(annotated: dict) -> dict[str, entrypoints.Entrypoint]:
    return entrypoints.load(annotated["metadata"]["annotations"][COMMANDS])


class TestManifests:
    def test_a_file_comes_out_changed(self, shop, tmp_path):
        file = tmp_path / "app.yaml"
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
        documents = [service, deployment(container(shop.image("web:1")), annotations={"mine": "1"})]
        file.write_text(yaml.safe_dump_all(documents))
        result = shop.call("-f", str(file))
        assert result.exit_code == 0, result.output
        untouched, changed = yaml.safe_load_all(result.stdout)
        assert untouched == service
        pod = changed["spec"]["template"]
        assert pod["metadata"]["labels"] == {"app": "x", LABEL: "workload"}
        assert pod["metadata"]["annotations"]["mine"] == "1"
        assert pod["metadata"]["annotations"]["sandman.dev/container"] == "app"
        (found,) = told(pod).items()
        assert found[0] == "app"
        assert found[1][0] == shop.image("web:1")
        assert found[1][2:] == (("/e",), ("a",))
        assert pod["spec"] == documents[1]["spec"]["template"]["spec"]

    def test_a_pipe_of_json_twice_is_once(self, shop):
        once = shop.call("-", input=json.dumps(deployment(container(shop.image("web:1")))))
        again = shop.call("-", input=once.stdout)
        assert yaml.safe_load(again.stdout) == yaml.safe_load(once.stdout)

    @pytest.mark.parametrize("kind", ["StatefulSet", "DaemonSet", "Job", "CronJob", "Pod", "List"])
    def test_all_kinds_that_have_pods(self, shop, kind):
        pod = template(container(shop.image("web:1")))
        documents = {
            "Pod": {"kind": "Pod", **pod},
            "CronJob": {"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": pod}}}},
            "List": {"kind": "List", "items": [{"kind": "Pod", **pod}, {"kind": "Service"}]},
        }
        document = documents.get(kind, {"kind": kind, "spec": {"template": pod}})
        result = shop.call("-", input=json.dumps(document))
        (found,) = templates.find(yaml.safe_load(result.stdout))
        assert found["metadata"]["labels"][LABEL] == "workload"
        assert set(told(found)) == {"app"}

    @pytest.mark.parametrize(
        ("annotations", "asked"),
        [
            ({}, {"a"}),
            ({"sandman.dev/container": "b"}, {"b"}),
            ({"sandman.dev/container": "a, b"}, {"a", "b"}),
            ({"sandman.dev/container": "*"}, {"a", "b"}),
            ({"kubectl.kubernetes.io/default-container": "b"}, {"b"}),
            ({"kubectl.kubernetes.io/default-container": "gone"}, {"a"}),
            ({"sandman.dev/container": "c"}, set()),
        ],
    )
    def test_the_chosen_containers_that_say_no_command_are_looked_up(self, annotations, asked):
        parts = [
            container("i", "a"),
            container("i", "b", command=[]),
            container("i", "c", command=["x"]),
        ]
        assert set(templates.unspoken(template(*parts, annotations=annotations))) == asked

    def test_a_choice_of_the_users_is_his(self, shop):
        document = deployment(
            container("i", "a", command=["x"]), container("i", "b", command=["x"]),
            annotations={"sandman.dev/container": "b"},
        )  # fmt: skip
        for arguments in ((), ("--remove",)):
            changed = yaml.safe_load(shop.call("-", *arguments, input=json.dumps(document)).stdout)
            kept = changed["spec"]["template"]["metadata"]["annotations"]
            assert kept == {"sandman.dev/container": "b"}

    def test_a_pod_that_says_all_asks_nobody(self, shop):
        document = deployment(container("nowhere.invalid/x", command=["run"]))
        result = shop.call("-", input=json.dumps(document))
        pod = yaml.safe_load(result.stdout)["spec"]["template"]["metadata"]
        assert pod == {
            "labels": {"app": "x", LABEL: "workload"},
            "annotations": {"sandman.dev/container": "app"},
        }
        assert not shop.fake.seen

    def test_commands_only_and_removal(self, shop):
        text = json.dumps(deployment(container(shop.image("web:1"))))
        only = shop.call("-", "--commands-only", input=text)
        pod = yaml.safe_load(only.stdout)["spec"]["template"]
        assert LABEL not in pod["metadata"]["labels"]
        assert told(pod)
        whole = shop.call("-", input=text)
        removed = yaml.safe_load(shop.call("-", "--remove", input=whole.stdout).stdout)
        assert removed["spec"]["template"]["metadata"] == {
            "labels": {"app": "x"},
            "annotations": {},
        }

    @pytest.mark.parametrize("text", ["a: [", "[1]", "'x'", '{"kind":"Deployment"}', '{"a'])
    def test_what_is_no_manifest_is_refused(self, shop, text):
        result = shop.call("-", input=text)
        assert result.exit_code == 1
        assert result.output.startswith("Error: ")

    def test_without_pyyaml_json_still_works(self, shop, monkeypatch):
        real = builtins.__import__

        def lacking(name, *arguments, **options):
            if name == "yaml":
                raise ImportError(name)
            return real(name, *arguments, **options)

        monkeypatch.setattr(builtins, "__import__", lacking)
        result = shop.call("-", input=json.dumps(deployment(container("x", command=["run"]))))
        assert json.loads(result.stdout)["kind"] == "Deployment"
        assert "PyYAML" in shop.call("-", input="kind: Pod").output


class TestCluster:
    def test_a_deployments_template_is_patched_and_nothing_else(self, shop):
        before = deployment(container(shop.image("web:1")))
        shop.store.write_text(json.dumps(before))
        result = shop.call("deploy/web", "-n", "shop", "--context", "prod")
        assert result.exit_code == 0, result.output
        assert "get the daemon" in result.stderr
        after = json.loads(shop.store.read_text())
        pod = after["spec"]["template"]
        assert set(told(pod)) == {"app"}
        assert pod["metadata"].pop("annotations")
        assert pod["metadata"]["labels"].pop(LABEL) == "workload"
        assert after == before
        assert all(call[:4] == ["-n", "shop", "--context", "prod"] for call in shop.calls())

    def test_and_back_again(self, shop):
        before = deployment(container(shop.image("web:1")), annotations={"mine": "1"})
        shop.store.write_text(json.dumps(before))
        assert shop.call("deploy/web").exit_code == 0
        result = shop.call("deploy/web", "--remove")
        assert "are as before" in result.stderr
        assert json.loads(shop.store.read_text()) == before

    @pytest.mark.parametrize(
        ("labels", "is_told"),
        [
            ({}, True),
            ({LABEL: "enabled"}, True),
            ({LABEL: "workloads"}, False),
            (None, False),  # who may not read namespaces is told nothing
        ],
    )
    def test_a_namespace_where_nothing_is_injected_is_told(self, shop, labels, is_told):
        document = deployment(container("x", command=["run"]))
        document["metadata"]["namespace"] = "shop"
        shop.store.write_text(json.dumps(document))
        if labels is not None:
            shop.store.with_name("namespace.json").write_text(json.dumps(labels))
        result = shop.call("deploy/web")
        assert result.exit_code == 0, result.output
        advice = "kubectl label namespace shop sandman.dev/inject=workloads"
        assert (advice in result.stderr) == is_told
        assert ("get the daemon" in result.stderr) == (not is_told)
        assert advice not in shop.call("deploy/web", "--remove").stderr

    def test_what_kubectl_says_is_passed_on(self, shop):
        result = shop.call("deploy/web")
        assert result.exit_code == 1
        assert 'deployments.apps "web" not found' in result.output

    def test_no_kubectl(self, shop, tmp_path):
        (tmp_path / "kubectl").unlink()
        result = shop.call("deploy/web")
        assert result.exit_code == 1
        assert "kubectl" in result.output

    def test_a_bare_pod_cannot_be_changed(self, shop):
        shop.store.write_text(json.dumps({"kind": "Pod", **template(container("x"))}))
        result = shop.call("pod/web")
        assert result.exit_code == 1
        assert "from its manifest" in result.output


class TestTold:
    @pytest.mark.parametrize("image", ["gone:1", "UPPER"])
    def test_an_image_that_cannot_be_looked_up_is_named_with_its_container(self, shop, image):
        document = deployment(container(shop.image(image)))
        result = shop.call("-", input=json.dumps(document))
        assert result.exit_code == 1
        assert "container app: " in result.output
        assert image in result.output

    def test_a_signal_that_is_not_passed_on_and_an_image_without_a_command(self, shop):
        shop.fake.image("systemd", StopSignal="SIGRTMIN+3")
        result = shop.call("-", input=json.dumps(deployment(container(shop.image("systemd")))))
        assert result.exit_code == 0
        assert "SIGRTMIN+3" in result.stderr
        assert "has no command" in result.stderr

    @pytest.mark.parametrize(
        "arguments", [(), ("deploy/x", "-f", "y"), ("deploy/x", "--platform", "linux")]
    )
    def test_wrong_usage(self, shop, arguments):
        assert shop.call(*arguments).exit_code == 2

    def test_a_file_that_is_not_there(self, shop):
        result = shop.call("-f", "/no/such")
        assert result.exit_code == 1
        assert "/no/such" in result.output
