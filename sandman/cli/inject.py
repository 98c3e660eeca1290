"""`sandman inject`: labels a workload for the daemon, and finds out what its images run by themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import httpx

from sandman import images, names
from sandman.cli import documents, templates
from sandman.doctor.cluster import complaint
from sandman.entrypoints import Entrypoint
from sandman.images import platforms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandman.cli.session import Session

KUBECTL_S = 60.0
"""Seconds for a call of kubectl, which may have to log in first."""
PASSED_ON = {"", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH"}
"""Stop signals that the daemon passes on to the command."""


@click.command()
@click.argument("workload", required=False, metavar="[KIND/NAME | -]")
@click.option(
    "-f", "--file", "file", metavar="FILE", help="Change a manifest and print it instead."
)
@click.option("-n", "--namespace", metavar="NAMESPACE", help="As of kubectl.")
@click.option("--context", "cluster", metavar="CONTEXT", help="As of kubectl.")
@click.option(
    "--platform", default="linux/amd64", show_default=True, help="Which image of several is meant."
)
@click.option(
    "--commands-only", is_flag=True, help="Write what the images run; leave the label as it is."
)
@click.option("--remove", is_flag=True, help="Take label and annotation away again.")
@click.option("--json", "as_json", is_flag=True, help="What became of KIND/NAME, as a JSON object.")
@click.pass_obj
def inject(  # noqa: PLR0913 - options
    session: Session,
    workload: str | None,
    file: str | None,
    namespace: str | None,
    cluster: str | None,
    platform: str,
    *,
    commands_only: bool,
    remove: bool,
    as_json: bool,
) -> None:
    """Have pods of a workload get Sandman's daemon beside what they run.

    With KIND/NAME it changes the object in the cluster (by kubectl, as you), which replaces its pods; with a file or `-`
    for standard input it prints the changed manifest. What images run that the pod does not say is asked of
    their registries, with your own logins.

    Examples: sandman inject deploy/web; sandman inject -f app.yaml | kubectl apply -f -
    """
    try:
        wanted = platforms.parse(platform)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--platform") from None
    if (workload is None) == (file is None):
        raise click.UsageError(
            "name one workload (deploy/web), or a manifest (-f FILE, or - for stdin)"
        )
    if as_json and workload in {None, "-"}:
        raise click.UsageError("--json goes with KIND/NAME: a manifest is printed as it is")
    with httpx.Client() as client:
        registry = images.Registry(client, images.Credentials(), wanted)
        work = _Work(session, registry, label=not commands_only, remove=remove)
        if workload is not None and workload != "-":
            deaf = work.in_cluster(workload, _kubectl(namespace, cluster))
            if as_json:
                told = {"workload": workload, "injected": not remove, "unlabelled_namespace": deaf}
                click.echo(json.dumps(told))
        else:
            work.in_text(_read(file or "-"))


class _Work:
    """One call of the verb."""

    def __init__(
        self, session: Session, registry: images.Registry, *, label: bool, remove: bool
    ) -> None:
        self._session = session
        self._registry = registry
        self._label = label
        self._remove = remove

    def in_cluster(self, workload: str, kubectl: list[str]) -> str | None:
        """Change it; the namespace that still has to be labelled for it, if any."""
        document = json.loads(_run([*kubectl, "get", workload, "-o", "json"]))
        place = templates.path(document)
        if not place:
            raise click.ClickException(
                f"{workload}: only what makes pods can be changed; make a pod anew from its manifest (-f)"
            )
        changed = self._change(templates.at(document, place))
        patch = json.dumps(templates.merge_patch(place, changed))
        _run([*kubectl, "patch", workload, "--type", "merge", "-p", patch])
        said = "are as before" if self._remove else "get the daemon"
        namespace = None if self._remove else _deaf(document, kubectl)
        if namespace is not None:
            said = (
                f"run without the daemon until its namespace is labelled: kubectl label namespace "
                f"{namespace} {names.LABEL_INJECT}={names.INJECT_NAMESPACE_WORKLOADS}"
            )
        self._session.say(f"{workload}: its next pods {said}")
        return namespace

    def in_text(self, text: str) -> None:
        try:
            found = documents.load(text)
            for document in found:
                for template in templates.find(document):
                    templates.apply(template, self._change(template))
        except ValueError as error:
            raise click.ClickException(str(error)) from None
        click.echo(documents.dump(found), nl=False)

    def _change(self, template: Mapping[str, Any]) -> dict[str, dict[str, str | None]]:
        if self._remove:
            return templates.removal(template)
        unspoken = templates.unspoken(template)
        found = {name: self._look_up(name, image) for name, image in unspoken.items()}
        return templates.change(template, found, label=self._label)

    def _look_up(self, container: str, image: str) -> Entrypoint:
        try:
            found = self._registry.find(image, images.parse(image))
        except (images.ImageError, ValueError) as error:
            raise click.ClickException(f"container {container}: {error}") from None
        if not found.entrypoint and not found.cmd:
            self._session.say(
                f"container {container}: image {image} has no command: the pod must say one"
            )
        if found.stop_signal not in PASSED_ON:
            click.echo(
                f"sandman: container {container}: its image wants to be stopped by {found.stop_signal}, "
                "which the daemon does not pass on",
                err=True,
            )
        return Entrypoint(image, found.digest, found.entrypoint, found.cmd)


def _kubectl(namespace: str | None, cluster: str | None) -> list[str]:
    options = ["-n", namespace] if namespace else []
    return ["kubectl", *options, *(["--context", cluster] if cluster else [])]


def _deaf(document: Mapping[str, Any], kubectl: list[str]) -> str | None:
    """The object's namespace, where that is known not to let workloads be injected."""
    namespace = str(document["metadata"].get("namespace", ""))
    try:
        found = json.loads(_run([*kubectl, "get", "namespace", namespace, "-o", "json"]))
    except click.ClickException:
        return None  # not for this user to read
    label = (found["metadata"].get("labels") or {}).get(names.LABEL_INJECT)
    return None if label == names.INJECT_NAMESPACE_WORKLOADS else namespace


def _run(command: list[str]) -> bytes:
    try:
        done = subprocess.run(  # noqa: S603 - kubectl of who runs this, with a list of words
            command, capture_output=True, check=False, timeout=KUBECTL_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise click.ClickException(f"kubectl: {error}") from None
    if done.returncode:
        raise click.ClickException(
            complaint(done.stderr.decode(errors="replace")) or "kubectl failed"
        )
    return done.stdout


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file}: {error}") from None
