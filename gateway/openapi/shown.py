"""What callers are shown: the schemas of `views`, by name."""

from __future__ import annotations

from gateway import scopes
from gateway.openapi import schema as s
from sandman import certificates

LEASE = s.answer({
    "ttl_s": s.maybe(s.number("it ends when nothing was heard of its caller for so long")),
    "idle_s": s.maybe(s.number("it ends when it had nothing to do for so long")),
    "max_s": s.maybe(s.number("its longest life")),
    "run": s.flag("its lease is that of its run"),
})  # fmt: skip

ENDED = s.answer({
    "reason": s.text("an error's"),
    "detail": s.text(),
    "at": s.maybe(s.moment("null where only the audit log knows")),
})  # fmt: skip

_SANDBOX = {
    "id": s.text(),
    "state": s.one_of(("starting", "ready", "ending", "ended")),
    "tier": s.maybe(s.text("how it came to be: warm, swap, cold or attached")),
    "pool": s.maybe(s.text()),
    "image": s.text("as it was asked for"),
    "image_pulled": s.text("as it is pulled"),
    "image_digest": s.maybe(s.text("null until it is known")),
    "node": s.maybe(s.text()),
    "resources": s.texts_by_name("cpu and memory, Kubernetes quantities: its limits"),
    "network": s.maybe(s.text("name of its egress profile; null: a workload's own")),
    "run": s.maybe(s.text()),
    "labels": s.texts_by_name("as they were given"),
    "created_at": s.maybe(s.moment()),
    "expires_at": s.maybe(s.moment("unless there is word of its caller before")),
    "lease": s.ref("Lease"),
}
CONDITIONS = s.answer({
    "purpose": s.one_of(("eval",)),
    "dedicated": s.flag("whether its pool is for evaluations alone"),
    "floor": s.texts_by_name("cpu and memory that are set aside for it"),
    "ceiling": s.texts_by_name("the most that it may use"),
    "qos": s.maybe(s.text("QoS class of its pod; null: nobody says")),
    "exclusive_cpus": s.maybe(s.flag("false: no kubelet would; null: its node's policy decides")),
    "env": s.texts_by_name("variables of every command that its caller did not set himself"),
    "network_acknowledged": s.flag("whether its egress profile was probed before it was handed over"),
})  # fmt: skip

_SOMETIMES = {
    "conditions": s.ref("Conditions"),
    "attached": s.answer(
        {"namespace": s.text(), "pod": s.text(), "container": s.text()},
        about="of which workload it is",
    ),
    "isolation": s.texts_by_name("in local mode: what is kept apart"),
    "ended": s.ref("Ended"),
}

SANDBOX = s.answer(_SANDBOX, _SOMETIMES)

READY = s.answer(
    {
        **_SANDBOX,
        "boot_id": s.text("which start of its daemon"),
        "token": s.text("good for this sandbox alone"),
        "timings": s.answer({
            "queued_ms": s.number(),
            "claim_ms": s.number(),
            "ready_ms": s.number(),
        }),
    },
    _SOMETIMES,
)  # fmt: skip

ENDED_SANDBOX = s.answer({
    "id": s.text(),
    "state": s.one_of(("ended",)),
    "run": s.maybe(s.text()),
    "ended": s.ref("Ended"),
})  # fmt: skip

QUEUED = s.answer(
    {
        "request": s.text("id, for GET and DELETE of /v1/requests/{id}"),
        "state": s.one_of(("waiting", "starting")),
        "place": s.maybe(s.whole("in the queue")),
        "retry_after": s.number("seconds"),
    },
    {"trouble": s.ref("Problem")},
)

LINE = s.answer(
    {},
    {
        "index": s.whole("of the sandbox, from 0"),
        "sandbox": s.ref("Ready"),
        "error": s.ref("Problem"),
        "waiting": s.ref("Queued"),
        "progress": s.ref("Counts"),
        "summary": s.ref("Counts"),
    },
    "a line of a stream; without its summary it broke off",
)

COUNTS = s.answer(
    {"ready": s.whole(), "failed": s.whole(), "waiting": s.whole()}, {"count": s.whole()}
)

POOL = s.answer({
    "name": s.text(),
    "image": s.text("that its placeholders run"),
    "swap": s.flag("whether other images may be asked of it"),
    "wanted": s.whole("free placeholders"),
    "free": s.whole(),
    "leased": s.whole(),
    "reserved": s.whole(),
    "max": s.maybe(s.whole("pods")),
    "resources": s.texts_by_name("limits of a placeholder"),
    "resize": s.flag(),
    "network": s.text("egress profile of who names none"),
    "networks": s.listed(s.text(), "those that may be asked for besides"),
    "node_class": s.maybe(s.text()),
    "purpose": s.maybe(s.one_of(("eval",))),
    "broken": s.maybe(s.text("why it was stopped")),
})  # fmt: skip

RESERVATION = s.answer({
    "id": s.text(),
    "state": s.one_of(("preparing", "ready", "failed")),
    "image": s.text(),
    "pool": s.text(),
    "run": s.maybe(s.text()),
    "count": s.whole(),
    "ready": s.whole(),
    "preparing": s.whole(),
    "used": s.whole(),
    "failed": s.whole(),
    "failures": s.listed(
        s.answer({
            "reason": s.text("an error's"),
            "detail": s.text(),
            "facts": s.anything(),
            "at": s.maybe(s.moment()),
        }),
        "the latest",
    ),
    "created_at": s.moment(),
    "until": s.moment(),
})  # fmt: skip

WORKLOAD = s.answer({
    "namespace": s.text(),
    "pod": s.text(),
    "container": s.text(),
    "image": s.text(),
    "node": s.maybe(s.text()),
    "labels": s.texts_by_name(),
    "attached": s.flag("whether somebody is attached just now"),
})  # fmt: skip

NETWORK = s.answer({
    "name": s.text(),
    "usable": s.flag(),
    "fault": s.maybe(s.text("why not")),
})  # fmt: skip

APPLIED = s.answer({
    "id": s.text(),
    "network": s.text(),
    "applied": s.flag(),
    "probes": s.listed(s.answer({
        "what": s.text(),
        "expected": s.one_of(("open", "closed")),
        "outcome": s.text("reachable, refused, timeout or unreachable"),
    })),
    "took_ms": s.number(),
})  # fmt: skip

CERTIFICATE = s.answer({
    "payload": s.text("base64 of the JSON that is signed: docs/evaluation.md"),
    "payloadType": s.one_of((certificates.PAYLOAD_TYPE,)),
    "signatures": s.listed(s.answer({"keyid": s.text(), "sig": s.text("base64")})),
}, about="an envelope of DSSE")  # fmt: skip

CERTIFICATE_KEYS = s.answer({
    "keys": s.listed(s.answer({
        name: s.text() for name in ("kty", "crv", "alg", "use", "kid", "x")
    })),
}, about="a JWK set: the first signs, the others have signed")  # fmt: skip

TOKEN = s.answer({
    "sandbox": s.text(),
    "token": s.text(),
    "may": s.maybe(s.listed(s.text(), f"of {', '.join(scopes.PLAIN)}, ports:<number>; null: all")),
    "expires_at": s.moment(),
})  # fmt: skip

TICKET = s.answer({
    "sandbox": s.text(),
    "exec_id": s.text(),
    "ticket": s.text("good once, in the query of the terminal's WebSocket"),
    "expires_at": s.moment(),
})  # fmt: skip

OVERVIEW = s.answer({
    "now": s.moment("by the gateway's clock"),
    "tenant": s.answer({
        "name": s.text(),
        "key": s.text("id of the caller's key or rule"),
        "weight": s.number(),
        "limits": s.answer({
            "concurrent": s.maybe(s.whole("sandboxes")),
            "eval_reserved": s.maybe(s.whole("of those for evaluations alone")),
            "rate": s.maybe(s.number("new ones a second")),
            "cpu": s.maybe(s.number("cores")),
            "memory": s.maybe(s.whole("bytes")),
        }),
        "sandboxes": s.whole("that live"),
        "waiting": s.whole("requests in the queue"),
        "oldest_s": s.maybe(s.number("how long the first of them waits")),
    }),
    "requests": s.listed(
        s.answer({
            "pool": s.text(),
            "image": s.text(),
            "run": s.maybe(s.text()),
            "waited_s": s.number(),
        }),
        "the tenant's own that wait, the longest first, 100 at most",
    ),
    "queue": s.answer(
        {"waiting": s.whole(), "claiming": s.whole(), "cold": s.whole("new pods in the making")},
        about="of all tenants together",
    ),
    "allocations": s.listed(
        s.answer({
            "at": s.moment(),
            "tier": s.text(),
            "queued_ms": s.number(),
            "total_ms": s.number(),
        }),
        "the tenant's last, the oldest first",
    ),
})  # fmt: skip

SCHEMAS = {
    "Lease": LEASE,
    "Ended": ENDED,
    "Conditions": CONDITIONS,
    "Sandbox": SANDBOX,
    "Ready": READY,
    "EndedSandbox": ENDED_SANDBOX,
    "Queued": QUEUED,
    "Line": LINE,
    "Counts": COUNTS,
    "Pool": POOL,
    "Reservation": RESERVATION,
    "Workload": WORKLOAD,
    "Network": NETWORK,
    "Applied": APPLIED,
    "Certificate": CERTIFICATE,
    "CertificateKeys": CERTIFICATE_KEYS,
    "Token": TOKEN,
    "Ticket": TICKET,
    "Overview": OVERVIEW,
}
