"""Sandboxes and what has to do with them at the gateway itself."""

from __future__ import annotations

from typing import Unpack

from gateway.openapi import asked, problems
from gateway.openapi import schema as s
from gateway.openapi.operation import NOTHING, Answer, More, Operation, Parameter, told
from gateway.routes import parse
from sandman import names
from sandman.errors import (
    CapacityError,
    ConflictError,
    ImageDeniedError,
    NetworkDeniedError,
    NetworkNotAppliedError,
    NetworkUnsupportedError,
    NotFoundError,
    OutcomeUnknownError,
    QuotaError,
    UnreachableError,
    UserUnsupportedError,
    VersionSkewError,
)

_KEY = Parameter(
    names.HEADER_IDEMPOTENCY_KEY,
    s.text(minLength=1, maxLength=parse.KEY_MAX),
    "the same key with the same request gives the same",
    "header",
)
_HANDED = {OutcomeUnknownError}
"""Of calls that another replica may have to answer."""
_PLACED = told(s.ref("Queued"), "not yet", Location="where to ask again", Retry_After="seconds")
_MADE = told(s.ref("Ready"), "it is ready", Location="where it is")
_STREAM = Answer(
    "with `count`: a line for each, and a last one",
    {names.MEDIA_NDJSON: s.text("lines, each a `Line`")},
)
_COUNT = s.whole()


def _json(name: str) -> dict[str, s.Schema]:
    return {names.MEDIA_JSON: s.ref(name)}


def _all(name: str, of: str) -> Answer:
    return told(s.answer({name: s.listed(s.ref(of))}))


def _do(
    method: str, path: str, summary: str, answers: dict[int, Answer], **more: Unpack[More]
) -> Operation:
    given: More = {"reasons": problems.CALL, "tag": "sandboxes", **more}
    return Operation(method=method, path=path, summary=summary, answers=answers, **given)


_LISTED = Answer(
    "as asked",
    {
        names.MEDIA_JSON: {
            "oneOf": [
                s.answer({"sandboxes": s.listed(s.ref("Sandbox"))}),
                s.answer({"sandboxes": s.listed(s.ref("EndedSandbox"), minItems=1)}),
                s.answer({"attachable": s.listed(s.ref("Workload"))}),
            ]
        }
    },
)

SANDBOXES = (
    _do(
        "POST", "/v1/sandboxes", "have a sandbox, or several", {201: _MADE, 202: _PLACED, 200: _STREAM},
        body=_json("SandboxRequest"), parameters=(_KEY,), reasons=problems.ALLOCATION | {NotFoundError},
    ),
    _do(
        "GET", "/v1/sandboxes", "the caller's", {200: _LISTED}, reasons=problems.CALL | problems.QUERY | {NotFoundError},
        parameters=(
            Parameter("run", s.text(pattern=asked.LABEL), "of this run alone"),
            Parameter("state", s.one_of(parse.STATES), "ended: those that are over instead"),
            Parameter("attachable", s.text(), "containers of workloads instead"),
            Parameter("namespace", s.text(), "with attachable: in this one alone"),
        ),
    ),
    _do(
        "POST", "/v1/sandboxes/attach", "attach to a workload", {201: told(s.ref("Ready"))},
        body=_json("AttachRequest"), needs_body=True, parameters=(_KEY,),
        reasons=problems.DAEMON | problems.BODY | {ConflictError, QuotaError, UserUnsupportedError},
    ),
    _do("GET", "/v1/sandboxes/{id}", "one of them", {200: told(s.ref("Sandbox"))}, reasons=problems.SANDBOX),
    _do("DELETE", "/v1/sandboxes/{id}", "release it; what is not there is released", {204: NOTHING}),
    _do(
        "POST", "/v1/sandboxes/{id}/renew", "its ttl_s begins anew", reasons=problems.SANDBOX | {ConflictError},
        answers={200: told(s.answer({"id": s.text(), "expires_at": s.maybe(s.moment())}))},
    ),
    _do(
        "POST", "/v1/sandboxes/{id}/certificate", "how it and commands in it ran, signed", {200: told(s.ref("Certificate"))},
        body=_json("CertificateRequest"), reasons=problems.DAEMON | problems.BODY | {CapacityError},
    ),
    _do(
        "POST", "/v1/sandboxes/{id}/tokens", "a token for this sandbox alone", {201: told(s.ref("Token"))},
        body=_json("TokenRequest"), reasons=problems.SANDBOX | problems.BODY | {VersionSkewError},
    ),
    _do(
        "POST", "/v1/sandboxes/{id}/tickets", "a ticket for a terminal's WebSocket", {201: told(s.ref("Ticket"))},
        body=_json("TicketRequest"), needs_body=True,
        reasons=problems.SANDBOX | problems.BODY | _HANDED | {QuotaError},
    ),
    _do("POST", "/v1/tickets/use", "between replicas: the ticket that is the token is used", {204: NOTHING},
        reasons=problems.CALL | _HANDED),
    _do(
        "PUT", "/v1/sandboxes/{id}/network", "another egress profile", {200: told(s.ref("Applied"))},
        body=_json("NetworkRequest"), needs_body=True,
        reasons=problems.DAEMON | problems.BODY
        | {ConflictError, NetworkDeniedError, NetworkNotAppliedError, NetworkUnsupportedError},
    ),
)  # fmt: skip

_BEAT = told(s.answer({"run": s.text(), "sandboxes": _COUNT}))
RUNS = (
    _do("DELETE", "/v1/runs/{run}", "release all of its sandboxes", {200: told(s.answer({"released": _COUNT}))},
        tag="runs", reasons=problems.CALL | problems.QUERY),
    _do("POST", "/v1/runs/{run}/heartbeat", "its caller lives", {200: _BEAT}, tag="runs",
        body=_json("Heartbeat"), reasons=problems.CALL | problems.BODY),
    _do("DELETE", "/v1/runs/{run}/heartbeat", "its caller sends no more", {200: _BEAT}, tag="runs",
        reasons=problems.CALL | problems.QUERY),
)  # fmt: skip

_ID_OF_REQUEST = problems.CALL | _HANDED
REQUESTS = (
    _do(
        "GET", "/v1/requests/{id}", "ask again", {201: _MADE, 202: _PLACED}, tag="requests",
        parameters=(Parameter("wait_s", s.seconds(zero=True)),),
        reasons=problems.ALLOCATION | {NotFoundError},
    ),
    _do("DELETE", "/v1/requests/{id}", "give it up", {204: NOTHING}, tag="requests", reasons=_ID_OF_REQUEST),
    _do("DELETE", "/v1/requests", "give up the request with this key", {204: NOTHING}, tag="requests",
        parameters=(_KEY,), reasons=_ID_OF_REQUEST | problems.QUERY),
)  # fmt: skip

_RESERVED = problems.CALL | _HANDED
RESERVATIONS = (
    _do(
        "POST", "/v1/reservations", "have sandboxes prepared ahead", {201: told(s.ref("Reservation"))},
        tag="reservations", body=_json("ReservationRequest"), needs_body=True, parameters=(_KEY,),
        reasons=_RESERVED | problems.BODY | {ConflictError, ImageDeniedError, QuotaError, CapacityError},
    ),
    _do("GET", "/v1/reservations", "the caller's", {200: _all("reservations", "Reservation")}, tag="reservations",
        reasons=_RESERVED),
    _do("GET", "/v1/reservations/{id}", "one, and how far it is", {200: told(s.ref("Reservation"))},
        tag="reservations", reasons=_RESERVED | {NotFoundError}),
    _do("DELETE", "/v1/reservations/{id}", "end it", {204: NOTHING}, tag="reservations", reasons=_RESERVED),
)  # fmt: skip

_PLAIN = {"text/plain": s.text()}
PLATFORM = (
    _do("GET", "/v1/overview", "how things stand for the caller's tenant", {200: told(s.ref("Overview"))},
        tag="platform", reasons=problems.CALL | _HANDED),
    _do("GET", "/v1/pools", "those that the caller may use", {200: _all("pools", "Pool")}, tag="platform"),
    _do(
        "GET", "/v1/networks", "egress profiles that the caller may ask for", tag="platform",
        answers={200: told(s.answer({
            "networks": s.listed(s.ref("Network")),
            "enforced": s.maybe(s.flag("null: nobody knows yet")),
        }))},
    ),
    _do("GET", "/v1/certificate-keys", "public keys of certificates", {200: told(s.ref("CertificateKeys"))},
        tag="platform", is_open=True, reasons=frozenset({UnreachableError})),
    _do("GET", "/v1/openapi.json", "this document", {200: told(s.anything())}, tag="platform",
        is_open=True, reasons=frozenset()),
    _do("GET", "/healthz", "whether it turns", {200: Answer("ok", _PLAIN)}, tag="platform",
        is_open=True, reasons=frozenset()),
    _do("GET", "/readyz", "whether it can serve", {200: Answer("ok", _PLAIN), 503: Answer("not yet, and why", _PLAIN)},
        tag="platform", is_open=True, reasons=frozenset()),
    _do("GET", "/metrics", "Prometheus text format", {200: Answer("all that callers may see", _PLAIN)},
        tag="platform", is_open=True, reasons=frozenset()),
)  # fmt: skip

OPERATIONS = (*SANDBOXES, *RUNS, *REQUESTS, *RESERVATIONS, *PLATFORM)
