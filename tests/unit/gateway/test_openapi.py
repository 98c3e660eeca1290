"""OpenAPI says what there is, and nothing else: routes both ways, members of bodies and answers, reasons of errors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import jsonschema_rs
import pytest

from daemon import application
from daemon.config import Config
from gateway import app, model, reserving, views
from gateway.config import Settings
from gateway.openapi import asked, commands, files
from gateway.openapi.document import OPERATIONS, WEBSOCKETS, document, text
from gateway.profiles import Profile
from gateway.registry import Ended
from gateway.routes import ahead, changes, parse
from gateway.routes.forward import FORWARDED
from gateway.routes.sockets import SOCKETS
from gateway.routes.tickets import TicketRoutes
from gateway.wants import Queued
from gateway.workloads import Workload
from sandman import certificates, claims, errors, handles, problems, sessions, terminal, wire

if TYPE_CHECKING:
    from starlette.routing import Route

DOCUMENT = document()
SCHEMAS = DOCUMENT["components"]["schemas"]
API = (Path(__file__).parents[3] / "docs/api.md").read_text()


def plain(path: str) -> str:
    return path.replace(":path}", "}")


def routes() -> list[Route]:
    context = SimpleNamespace()
    return app.table(context, SimpleNamespace(render=None), TicketRoutes(context), list)


def table() -> dict[str, set[str] | None]:
    """Methods by path; None: any. HEAD where Starlette has added it is left out."""
    found = {}
    for route in routes():
        if route.methods is None:
            found[plain(route.path)] = None
            continue
        is_own = route.path.removeprefix("/v1/sandboxes/{id}/") not in FORWARDED
        added = {"HEAD"} if is_own and "GET" in route.methods else set()
        found.setdefault(plain(route.path), set()).update(route.methods - added)
    return found


def test_every_route_and_method_is_described_and_no_other():
    described: dict[str, set[str] | None] = {}
    for one in OPERATIONS:
        described.setdefault(one.path, set()).add(one.method)
    for path, methods in described.items():
        if methods == set(files.PORT_METHODS):
            described[path] = None
    assert described == table()
    assert len({(one.method, one.path) for one in OPERATIONS}) == len(OPERATIONS)
    assert set(WEBSOCKETS) == {f"/v1/sandboxes/{{id}}/{plain(tail)}" for tail in SOCKETS}


def test_no_path_is_also_another_one():
    """Else what the one does not take goes to the other: a call that is misspelt, to something that is not meant."""
    for route in routes():
        path = re.sub(r"{\w+(:path)?}", "1", route.path)
        matched = {other.path for other in routes() if other.path_regex.match(path)}
        assert matched == {route.path}


def test_what_goes_on_to_the_daemon_has_the_parameters_that_the_daemon_takes():
    routes = application.build(Config(port=1, token_sha256=""), *[SimpleNamespace(boot_id="")] * 3)
    checked = 0
    for one in OPERATIONS:
        tail = one.path.partition("/v1/sandboxes/{id}/")[2]
        if tail not in FORWARDED:
            continue
        there = "/v1/" + re.sub(r"{\w+}", "{}", tail)
        taken = routes._table[there][one.method].parameters
        query = {parameter.name for parameter in one.parameters if parameter.place == "query"}
        assert query == set(taken), one.path
        checked += 1
    assert checked == sum(len(methods) for methods in FORWARDED.values())


def test_it_is_sound():
    assert json.loads(text()) == DOCUMENT
    for schema in [*SCHEMAS.values(), *(p.schema for one in OPERATIONS for p in one.parameters)]:
        jsonschema_rs.meta.validate(
            {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
        )
    for reference in set(re.findall(r'"\$ref":"#/([^"]+)"', text().decode())):
        place = DOCUMENT
        for part in reference.split("/"):
            place = place[part]
    names = [one.name for one in OPERATIONS]
    assert len(names) == len(set(names))
    used = set(re.findall(r"schemas/(\w+)", text().decode()))
    # A stream is no JSON: its lines are named in words.
    assert used == set(SCHEMAS) - {"Line", "Counts"} | {"Counts"}


def test_every_reason_of_an_error_is_somewhere_and_with_its_status():
    told = {reason for one in OPERATIONS for found in one.problems.values() for reason in found}
    leaves = {
        reason
        for reason, cls in problems.by_reason().items()
        if not cls.__subclasses__() and cls.__module__ == errors.__name__
    }
    assert told == leaves


def known(parse_body) -> set[str]:
    """Members that a body may have, as its parser says when it is given another."""
    with pytest.raises(errors.BadRequestError) as caught:
        parse_body()
    assert "unknown field" in caught.value.detail, caught.value.detail
    names = caught.value.detail.partition("known: ")[2].split(", ")
    return {name.rpartition(".")[2] for name in names}


SETTINGS = Settings()
POOLS = {"root": SimpleNamespace(name="root", image="x")}
PRINCIPAL = SimpleNamespace(tenant="acme", key_id="k")
NO = {"zzz": 1}
BODIES = {
    "SandboxRequest": (lambda: parse.sandbox_request(NO, SETTINGS), asked.SANDBOX),
    "lease": (lambda: parse.sandbox_request({"lease": NO}, SETTINGS), asked.LEASE),
    "owner": (lambda: parse.sandbox_request({"owner": NO}, SETTINGS), asked.OWNER),
    "resources": (
        lambda: parse.sandbox_request({"resources": NO}, SETTINGS),
        asked.SANDBOX["properties"]["resources"],
    ),
    "AttachRequest": (
        lambda: parse.attach_request({"namespace": "n", "pod": "p", **NO}, SETTINGS),
        asked.ATTACHMENT,
    ),
    "ReservationRequest": (
        lambda: ahead.reservation_request(
            {"pool": "root", "count": 1, "for_s": 1, **NO}, PRINCIPAL, POOLS, 0.0
        ),
        asked.RESERVATION,
    ),
    "NetworkRequest": (lambda: changes.network_change(NO, SETTINGS), asked.NETWORK),
    "CertificateRequest": (lambda: changes.certificate_request(NO), asked.CERTIFICATE),
    "TokenRequest": (lambda: changes.token_request(NO), asked.TOKEN),
    "TicketRequest": (lambda: changes.ticket_request(NO), asked.TICKET),
    "Heartbeat": (lambda: parse.heartbeat(NO, SETTINGS), asked.HEARTBEAT),
    "Command": (lambda: wire.ExecSpec.from_json({"argv": ["a"], **NO}), commands.COMMAND),
    "terminal": (
        lambda: terminal.TerminalSpec.from_json(NO),
        commands.COMMAND["properties"]["terminal"],
    ),
    "SessionRequest": (lambda: sessions.SessionSpec.from_json(NO), commands.SESSION_ASKED),
    "SessionRun": (
        lambda: sessions.TurnSpec.from_json("run", {"command": "", **NO}),
        commands.RUN,
    ),
    "SessionInput": (lambda: sessions.TurnSpec.from_json("input", NO), commands.INPUT),
    "SessionInterrupt": (
        lambda: sessions.TurnSpec.from_json("interrupt", NO),
        commands.INTERRUPTION,
    ),
    "TerminalSize": (lambda: terminal.parse_size({"rows": 1, "cols": 1, **NO}), commands.SIZE),
    "step exec": (lambda: step("exec", argv=["a"]), asked.STEPS["exec"]),
    "step file": (lambda: step("file", path="/a", content=""), asked.STEPS["file"]),
    "step archive": (lambda: step("archive", path="/a", tar=""), asked.STEPS["archive"]),
}
DAEMONS = {"Signal", "Move", "NewDirectory"}
"""Which the daemon reads in its handlers; the fuzz of the live gateway holds those."""


def step(kind: str, **members: object) -> None:
    parse.sandbox_request({"prepare": [{kind: {**members, **NO}}]}, SETTINGS)


@pytest.mark.parametrize("name", BODIES)
def test_the_members_of_a_body_are_those_that_are_parsed(name):
    parse_body, schema = BODIES[name]
    left_out = {"step exec": set(asked.steps.NOT_IN_A_STEP)}.get(name, set())
    assert set(schema["properties"]) == known(parse_body) - left_out
    assert schema["additionalProperties"] is False


def test_every_body_is_compared():
    found = {
        one["$ref"].rpartition("/")[2]
        for operation in OPERATIONS
        for one in operation.body.values()
        if "$ref" in one
    }
    assert found == {name for name in BODIES if name[0].isupper()} | DAEMONS


ENDING = model.Ending("died", "it died", at=1.0)
INSTANCE = model.Instance(
    namespace="n", name="p", uid="0123456789", version="1", pool="root", state="leased", image="x",
    tier="attached", place=model.Place("p", "c", 1, "b"), isolation={"cpu": "shared"}, ending=ENDING,
    request={"conditions": {}},
)  # fmt: skip
RESERVATION = reserving.Reservation(
    id="1", tenant="acme", key_id="k", image="x", pool="root", count=1, until=2.0, created_at=1.0
)
PROGRESS = reserving.Progress(
    0, 0, reserving.Trouble((reserving.Failure("image_pull", "", {}, 1.0),))
)
READY = model.Ready(INSTANCE, "b", model.Timings(1, 1, 1))
SPEC = model.PoolSpec("n", "root", "x", True, 1, 2, node_class="big")
WORKLOAD = Workload(namespace="n", pod="p", uid="u", container="c", port=1, nonce="o", key_id="k")
PROBE = {"what": "a:1", "expected": "open", "outcome": "reachable"}
NETWORKS = views.networks({"open": Profile("open", fault="x")}, model.Share())

ANSWERS = {
    "Info": claims.Info("b").to_json(),
    "Result": wire.ExecResult(0, stdout=b"\xff", stderr=b"\xff").to_json(),
    "Process": handles.ProcessInfo("a", "ended", result=wire.ExecResult(0)).to_json(),
    "Session": sessions.SessionInfo("a", startup=b"\xff").to_json(),
    "SessionResult": sessions.SessionResult("a", output=b"\xff", notices=b"\xff").to_json(),
    "Problem": errors.NotFoundError(
        "x", field="f", sandbox="s", retry_after=1, facts={"a": 1}
    ).problem(),
    "Sandbox": views.sandbox(INSTANCE),
    "Ready": views.ready(READY, "t"),
    "EndedSandbox": views.ended(Ended("a", "acme", "r", ENDING)),
    "Ended": views.sandbox(INSTANCE)["ended"],
    "Conditions": views.sandbox(INSTANCE)["conditions"],
    "Lease": views.sandbox(INSTANCE)["lease"],
    "Queued": views.queued(Queued("1", True, 1, 1.0, errors.ImagePullError("x"))),
    "Pool": views.pool(SPEC, []),
    "Reservation": views.reservation(RESERVATION, PROGRESS),
    "Workload": views.workload(WORKLOAD, is_taken=True),
    "Network": NETWORKS["open"],
    "Applied": views.applied(INSTANCE, [PROBE], 1.0),
    "Certificate": certificates.Certificate(b"{}", (("k", b"s"),), {}).to_json(),
    "CertificateKeys": certificates.keys_to_json([b"p" * 32]),
}
OTHERS = {"Token", "Ticket", "Overview", "Counts", "Line", "Entry", "Written", "Unpacked"}
"""Which are made where they are sent; the fuzz of the live gateway holds those."""


@pytest.mark.parametrize("name", ANSWERS)
def test_the_members_of_an_answer_are_those_that_are_told(name):
    assert set(ANSWERS[name]) == set(SCHEMAS[name]["properties"])
    whole = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    jsonschema_rs.validate(whole, ANSWERS[name])


def test_every_answer_is_compared():
    assert set(ANSWERS) | OTHERS | {name for name in BODIES if name[0].isupper()} | DAEMONS == set(
        SCHEMAS
    )


def rows() -> set[tuple[str, str]]:
    """Methods and paths in the tables of docs/api.md, those of the daemon's too."""
    found = set()
    for cell in re.findall(r"^\| ((?:`[^`]+`(?: ·)? ?)+)", API, re.MULTILINE):
        for method, path in re.findall(r"`(GET|PUT|POST|DELETE|HEAD) ([^`? ]+)", cell):
            found.add((method, path.replace("…/", "/v1/sandboxes/{id}/")))
    return found


def test_the_tables_of_the_document_name_no_call_that_there_is_not():
    described = {(one.method, one.path) for one in OPERATIONS}
    described |= {("GET", path) for path in WEBSOCKETS}
    assert len(rows()) >= 30
    assert rows() <= described


@pytest.mark.parametrize("one", OPERATIONS, ids=lambda one: one.name)
def test_every_parameter_and_member_stands_in_the_document(one):
    names = {parameter.name for parameter in one.parameters}
    for schema in one.body.values():
        if "$ref" in schema:
            names |= set(SCHEMAS[schema["$ref"].rpartition("/")[2]]["properties"])
    missing = {name for name in names if not re.search(rf"\b{name}\b", API)}
    assert not missing
