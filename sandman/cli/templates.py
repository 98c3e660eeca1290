"""Pod templates in Kubernetes objects: where they are, and what of them `sandman inject` changes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandman import entrypoints, names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_BY_KIND: dict[str, tuple[str, ...]] = {
    "Pod": (),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    **dict.fromkeys(
        (
            "DaemonSet",
            "Deployment",
            "Job",
            "ReplicaSet",
            "ReplicationController",
            "StatefulSet",
        ),
        ("spec", "template"),
    ),
}


def path(document: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Where the pod template is in an object of this kind; None: it has none."""
    return _BY_KIND.get(str(document.get("kind")))


def find(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every pod template in a document, which may be a list of objects."""
    if str(document.get("kind", "")).endswith("List"):
        for item in document.get("items") or ():
            yield from find(item)
        return
    place = path(document)
    if place is not None:
        yield at(document, place)


def at(document: Mapping[str, Any], place: tuple[str, ...]) -> dict[str, Any]:
    """What stands there.

    Raises:
        ValueError: the object has no such member.
    """
    value: Any = document
    for part in place:
        value = value.get(part) if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(value.get("spec"), dict):
        raise ValueError(f"{document.get('kind')}: there is no pod template in it")  # noqa: TRY004
    return value


def unspoken(template: Mapping[str, Any]) -> dict[str, str]:
    """The containers that are to get the daemon and say no command: image by name."""
    containers = template["spec"].get("containers") or []
    wish = _wish(template)
    named = {one.strip() for one in wish.split(",") if one.strip()}
    if wish == names.ALL_CONTAINERS:
        chosen = containers
    elif named:
        chosen = [one for one in containers if one.get("name") in named]
    else:
        chosen = [one for one in containers if one.get("name") == _usual(template)]
    return {one["name"]: one["image"] for one in chosen if not one.get("command")}


def change(
    template: Mapping[str, Any], found: Mapping[str, entrypoints.Entrypoint], *, label: bool
) -> dict[str, dict[str, str | None]]:
    """The members of a template's metadata, as a merge patch: None takes one away."""
    text = entrypoints.dump(found) if found else None
    annotations: dict[str, str | None] = {names.ANNOTATION_COMMANDS: text}
    if not label:
        return {"annotations": annotations}
    if not _wish(template):
        # By name: another injector may put a container of its own before it.
        annotations[names.ANNOTATION_CONTAINER] = _usual(template)
    return {"annotations": annotations, "labels": {names.LABEL_INJECT: names.INJECT_WORKLOAD}}


def removal(template: Mapping[str, Any]) -> dict[str, dict[str, str | None]]:
    """The change that takes away what `change` has written."""
    annotations: dict[str, str | None] = {names.ANNOTATION_COMMANDS: None}
    if _wish(template) == _usual(template):
        annotations[names.ANNOTATION_CONTAINER] = None
    return {"annotations": annotations, "labels": {names.LABEL_INJECT: None}}


def _annotations(template: Mapping[str, Any]) -> Mapping[str, Any]:
    return (template.get("metadata") or {}).get("annotations") or {}


def _wish(template: Mapping[str, Any]) -> str:
    return str(_annotations(template).get(names.ANNOTATION_CONTAINER, "")).strip()


def _usual(template: Mapping[str, Any]) -> str | None:
    """The container that is meant where nothing is said."""
    there = [one.get("name") for one in template["spec"].get("containers") or []]
    default = _annotations(template).get(_DEFAULT_CONTAINER)
    return default if default in there else next(iter(there), None)


def apply(template: dict[str, Any], changed: Mapping[str, Mapping[str, str | None]]) -> None:
    """Carry out a change on a template in place."""
    metadata = template.get("metadata") or {}
    for member, values in changed.items():
        now = {**(metadata.get(member) or {}), **values}
        kept = {key: value for key, value in now.items() if value is not None}
        if kept or member in metadata:
            metadata[member] = kept
    template["metadata"] = metadata


def merge_patch(
    place: tuple[str, ...], changed: Mapping[str, Mapping[str, str | None]]
) -> dict[str, Any]:
    """The change as a merge patch of the whole object."""
    patch: dict[str, Any] = {"metadata": changed}
    for part in reversed(place):
        patch = {part: patch}
    return patch
