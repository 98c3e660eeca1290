"""A small API server: real HTTP over real sockets, one collection of pods, versions, watches, faults."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from urllib.parse import parse_qs, urlsplit

import h11
import trio

from sandman.service import kube


def pod(name: str, *, version: int = 1, uid: str | None = None, **labels: str) -> dict:
    return {
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "x", "uid": uid or f"uid-{name}",
            "resourceVersion": str(version), "labels": labels,
            "managedFields": [{"manager": "m"}],
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "i", "env": []}]},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    }  # fmt: skip


@dataclasses.dataclass
class Seen:
    """A request as it came."""

    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


@dataclasses.dataclass
class Answer:
    """What to send back. `chunks` is a stream; `cut` closes the connection in the middle,
    `then_close` after the whole, without a word."""

    status: int = 200
    body: object = None
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    chunks: AsyncGenerator[bytes, None] | None = None
    cut: bool = False
    then_close: bool = False
    raw: bytes | None = None


def status(code: int, reason: str, message: str = "", **details) -> Answer:
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason}
    return Answer(code, {**body, "message": message, "details": details or None})


Handler = Callable[[Seen], Answer]


class FakeApi:
    """Answers by `handler`; keeps what it saw."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.handler: Handler = lambda seen: Answer(body=pod("a"))
        self.connections = 0
        self.open = 0
        self.delay_s = 0.0

    def answer_with(self, *answers: Answer) -> None:
        """These in turn, the last one for ever."""
        left = list(answers)
        self.handler = lambda seen: left.pop(0) if len(left) > 1 else left[0]

    def delay_of(self, _seen: Seen) -> float:
        """Seconds until a request is carried out, whether or not its client waits for that."""
        return self.delay_s

    async def serve(self, stream: trio.abc.Stream) -> None:
        self.connections += 1
        self.open += 1
        http = h11.Connection(h11.SERVER)
        try:
            while await self._request(http, stream):
                http.start_next_cycle()
        except (trio.BrokenResourceError, h11.ProtocolError):
            pass
        finally:
            self.open -= 1
            await trio.aclose_forcefully(stream)

    async def _request(self, http: h11.Connection, stream: trio.abc.Stream) -> bool:
        request, body = None, b""
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await stream.receive_some(65536))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                return False
        url = urlsplit(request.target.decode())
        headers = {name.decode().lower(): value.decode() for name, value in request.headers}
        params = {name: values[0] for name, values in parse_qs(url.query).items()}
        seen = Seen(request.method.decode(), url.path, params, headers, body)
        self.seen.append(seen)
        await trio.sleep(self.delay_of(seen))
        return await self._answer(http, stream, self.handler(seen))

    async def _answer(self, http: h11.Connection, stream: trio.abc.Stream, answer: Answer) -> bool:
        if answer.chunks is not None:
            head = h11.Response(status_code=200, headers=[("Transfer-Encoding", "chunked")])
            await stream.send_all(http.send(head))
            async with contextlib.aclosing(answer.chunks) as chunks:
                async for chunk in chunks:
                    await stream.send_all(http.send(h11.Data(data=chunk)))
            if answer.cut:
                return False
            await stream.send_all(http.send(h11.EndOfMessage()))
            return True
        if answer.cut:
            return False
        body = answer.raw if answer.raw is not None else json.dumps(answer.body).encode()
        headers = [*answer.headers.items(), ("Content-Length", str(len(body)))]
        data = http.send(h11.Response(status_code=answer.status, headers=headers))
        data += http.send(h11.Data(data=body)) + http.send(h11.EndOfMessage())
        await stream.send_all(data)
        return not answer.then_close


@contextlib.asynccontextmanager
async def serving(**options) -> AsyncIterator[tuple[FakeApi, kube.Kube]]:
    """The fake and a client of it."""
    api = FakeApi()
    async with trio.open_nursery() as nursery:
        [listener, *_] = await nursery.start(
            partial(trio.serve_tcp, api.serve, 0, host="127.0.0.1")
        )
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        target = kube.Target(url, **options.pop("target", {}))
        async with kube.Kube(target, luck=lambda: 0.0, **options) as client:
            yield api, client
        nursery.cancel_scope.cancel()
