"""What callers ask of the gateway itself: the schemas of the bodies that `routes.parse` and its like read."""

from __future__ import annotations

from gateway import scopes, steps
from gateway.model import COUNT_MAX, Purpose
from gateway.openapi import schema as s
from gateway.openapi.commands import COMMAND, USER
from gateway.reserving import LENGTH_MAX_S
from gateway.routes import parse
from sandman import evidence

LABEL = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
"""As `names.is_label`."""
_AMOUNT: s.Schema = {"type": ["string", "number"], "description": "a quantity: 500m, 2, 4Gi"}
_IN_STEP = {"path": s.text("absolute", pattern="^/", maxLength=steps.PATH_MAX)}


def _step_command() -> s.Schema:
    properties = COMMAND["properties"]
    assert isinstance(properties, dict)  # noqa: S101 - for the type checker
    return {
        **COMMAND,
        "properties": {k: v for k, v in properties.items() if k not in steps.NOT_IN_A_STEP},
    }


STEPS = {
    "exec": _step_command(),
    "file": s.body(
        {
            "content": s.text("as text"),
            "content_b64": s.text("or as base64"),
            "mode": s.text("octal"),
            "user": USER,
        },
        _IN_STEP,
    ),
    "archive": s.body(
        {"tar": s.text(), "tar_b64": s.text("gzipped or not, as base64"), "user": USER}, _IN_STEP
    ),
}
"""By kind."""

_PREPARE = s.listed(
    {"oneOf": [s.body({}, {kind: one}) for kind, one in STEPS.items()]},
    "done in it before it is handed over",
    maxItems=steps.STEPS_MAX,
)
LEASE = s.body({
    "ttl_s": s.number("it ends when nothing was heard of its caller for so long", minimum=5),
    "idle_s": s.number("it ends when it had nothing to do for so long", minimum=5),
    "max_s": s.seconds("its longest life"),
    "run": s.flag("its lease is that of its run"),
})  # fmt: skip
OWNER = s.body(
    {"kind": s.one_of(("Job",)), "namespace": s.text(), "uid": s.text()},
    {"name": s.text("the Job that it goes with")},
)
_IN_ANY = {
    "env": s.texts_by_name("variables of every command"),
    "workdir": s.text("absolute", pattern="^/", maxLength=parse.PATH_MAX),
    "user": USER,
    "run": s.text("name of a run", pattern=LABEL),
    "labels": s.texts_by_name("for the caller's own use"),
    "lease": LEASE,
}
_IMAGE = s.text("reference of the task's image", maxLength=parse.IMAGE_MAX)

SANDBOX = s.body({
    "image": _IMAGE,
    "pool": s.text("name of a pool"),
    "resources": s.body({"cpu": _AMOUNT, "memory": _AMOUNT}),
    "node_class": s.text(pattern=LABEL),
    **_IN_ANY,
    "owner": OWNER,
    "purpose": s.one_of((Purpose.TRAIN.value, Purpose.EVAL.value)),
    "network": s.text("name of an egress profile", pattern=LABEL),
    "network_wait": s.flag("hand it over when that is in force; an evaluation is, unless this is false"),
    "avoid_nodes": s.listed(
        s.text("name of a node"), "where it must not be", maxItems=parse.AVOID_MAX
    ),
    "prepare": _PREPARE,
    "wait_s": s.seconds("for it to be ready", zero=True),
    "count": s.whole("how many; the answer is a stream then", 1, COUNT_MAX),
    "gang": s.flag("all of them or none"),
})  # fmt: skip

ATTACHMENT = s.either(s.body(
    {
        "pod": s.text("or"),
        "selector": s.texts_by_name("labels, each of which must be equal"),
        "container": s.text(),
        **_IN_ANY,
    },
    {"namespace": s.text("the pod's", minLength=1)},
), "pod", "selector")  # fmt: skip

RESERVATION = s.either(s.body(
    {
        "image": _IMAGE,
        "pool": s.text(),
        "prepare": _PREPARE,
        "run": s.text(pattern=LABEL),
        "until": s.moment("or"),
        "for_s": s.seconds("", LENGTH_MAX_S),
    },
    {"count": s.whole("", 1, COUNT_MAX)},
), "until", "for_s")  # fmt: skip

NETWORK = s.body(
    {"wait_s": s.seconds("for it to be in force")},
    {"network": s.text("name of an egress profile", pattern=LABEL)},
)
CERTIFICATE = s.body({
    "exec_ids": s.listed(
        s.text(pattern=r"^[A-Za-z0-9._-]{1,64}$"), "commands that it tells of", maxItems=evidence.MAX_COMMANDS
    ),
})  # fmt: skip

TOKEN = s.body({
    "may": s.listed(
        s.text(f"of {', '.join(scopes.PLAIN)}, ports:<number>"), minItems=1, maxItems=scopes.SCOPES_MAX
    ),
    "ttl_s": s.seconds(),
})  # fmt: skip
TICKET = s.body({}, {"exec_id": s.text("the command whose terminal it is for")})
HEARTBEAT = s.body({"ttl_s": s.seconds("the caller means to be silent at most")})

SCHEMAS = {
    "SandboxRequest": SANDBOX,
    "AttachRequest": ATTACHMENT,
    "ReservationRequest": RESERVATION,
    "NetworkRequest": NETWORK,
    "CertificateRequest": CERTIFICATE,
    "TokenRequest": TOKEN,
    "TicketRequest": TICKET,
    "Heartbeat": HEARTBEAT,
}
