"""Allocate, show, list and release sandboxes; list pools."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import TYPE_CHECKING

import trio
from starlette.responses import Response
from starlette.routing import Route

from gateway import policy, scopes, views
from gateway.routes import parse
from gateway.routes.attach import AttachRoutes
from gateway.routes.context import Json, json_body
from gateway.routes.requests import Stream, answer
from sandman import names
from sandman.errors import SandmanError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from gateway.metrics import Metrics
    from gateway.model import Instance, Ready
    from gateway.routes.context import Context

LOCATION = "/v1/sandboxes/"

ONE = re.compile(r"^/v1/sandboxes/(?P<id>(?!attach$)[^/]+)$")
"""One sandbox. No id is `attach`, which is a path of its own."""

GONE = {404, 410}


class SandboxRoutes:
    """Endpoints over the pool."""

    def __init__(self, context: Context, metrics: Metrics) -> None:
        self._context = context
        self._metrics = metrics
        self._workloads = AttachRoutes(context)

    def routes(self) -> list[Route]:
        """Where they are."""
        show = Route("/v1/sandboxes/{id}", self.show, methods=["GET"])
        release = Route("/v1/sandboxes/{id}", self.release, methods=["DELETE"])
        show.path_regex = release.path_regex = ONE
        return [
            *self._workloads.routes(),
            Route("/v1/sandboxes", self.create, methods=["POST"]),
            Route("/v1/sandboxes", self.list, methods=["GET"]),
            show,
            release,
            Route("/v1/runs/{run}", self.release_run, methods=["DELETE"]),
            Route("/v1/pools", self.pools, methods=["GET"]),
        ]

    async def create(self, request: Request) -> ASGIApp:
        """`POST /v1/sandboxes`."""
        context, asked = self._context, trio.current_time()
        principal = await context.principal(request)
        policy.may_manage(principal)
        if not context.handoff.is_allocator:
            return await context.handoff.forward(request, lambda one: self._note(one, asked))
        key = parse.idempotency_key(request.headers.get(names.HEADER_IDEMPOTENCY_KEY))
        body = await json_body(request, context.settings.body_max_bytes)
        wanted = parse.sandbox_request(body, context.settings)
        policy.may_run(principal, wanted.image)
        await context.pool.networks.check(wanted.network)
        wanted = await context.owners.resolve(wanted)
        desk, tenant, share = context.desk, principal.tenant, principal.share
        show = functools.partial(self.hand_over, principal.key_id)
        if wanted.count is None:
            return answer(await desk.allocate(tenant, wanted, key, share), show)
        members = await desk.open(tenant, wanted, key, share)
        return Stream(desk, members, wanted.wait_s, show, self._metrics)

    def hand_over(self, maker: str, made: Ready) -> dict[str, object]:
        """A sandbox that was just made, as its caller sees it; `maker` is the id of his key or rule."""
        self._context.proxy.learn(made.instance.uid, made.boot_id)
        self._metrics.allocated(made)
        self._metrics.recent.note(made, self._context.wall())
        total_ms = made.timings.queued_ms + made.timings.claim_ms + made.timings.ready_ms
        self._metrics.firsts.made(made.instance.id, trio.current_time() - total_ms / 1e3)
        # The token is good for the longest life; shown is when it ends unless it is renewed.
        token = self._context.token(made.instance, made.boot_id, maker)
        shown = dataclasses.replace(made, instance=self._context.keeper.as_of_now(made.instance))
        return views.ready(shown, token)

    def _note(self, location: str, asked: float) -> None:
        """Another replica made this sandbox for a call that came here at `asked`."""
        if location.startswith(LOCATION):
            self._metrics.firsts.made(location.removeprefix(LOCATION), asked)

    async def list(self, request: Request) -> Response:
        """`GET /v1/sandboxes?run=&state=`, `?attachable`."""
        if "attachable" in request.query_params:
            return await self._workloads.attachable(request)
        principal = await self._context.principal(request)
        policy.may_manage(principal)
        run, ended = parse.list_query(request.query_params.multi_items())
        both = (self._context.roster.registry, self._context.attacher.attached.registry)
        if ended:
            gone = [one for registry in both for one in registry.ended(principal.tenant, run)]
            return Json({"sandboxes": [views.ended(one) for one in gone]})
        found = [one for registry in both for one in registry.of_tenant(principal.tenant, run)]
        return Json({"sandboxes": [self._shown(one) for one in found]})

    async def show(self, request: Request) -> Response:
        """`GET /v1/sandboxes/{id}`."""
        principal = await self._context.principal(request)
        instance = await self._context.find(principal, request.path_params["id"], scopes.LOOK)
        return Json(self._shown(instance))

    def _shown(self, instance: Instance) -> dict[str, object]:
        return views.sandbox(
            self._context.keeper.as_of_now(instance),
            is_met=self._context.proxy.has_met(instance.uid),
        )

    async def release(self, request: Request) -> Response:
        """`DELETE /v1/sandboxes/{id}`: what is not there, or not the caller's, is released already."""
        principal = await self._context.principal(request)
        policy.may_manage(principal)
        try:
            sandbox = request.path_params["id"]
            instance = await self._context.find(principal, sandbox, scopes.MANAGE)
        except SandmanError as error:
            if error.status in GONE:
                return Response(status_code=204)
            raise
        if instance.place is not None:
            await self._context.attacher.release(instance)
        else:
            await self._context.releaser.release(instance)
        return Response(status_code=204)

    async def release_run(self, request: Request) -> Response:
        """`DELETE /v1/runs/{run}`."""
        principal = await self._context.principal(request)
        policy.may_manage(principal)
        run = parse.run_name(request.path_params["run"])
        found = self._context.roster.registry.of_tenant(principal.tenant, run)
        released = await self._context.releaser.release_all(found)
        for one in self._context.attacher.attached.registry.of_tenant(principal.tenant, run):
            await self._context.attacher.release(one)
            released += 1
        return Json({"released": released})

    async def pools(self, request: Request) -> Response:
        """`GET /v1/pools`."""
        principal = await self._context.principal(request)
        policy.may_manage(principal)
        roster = self._context.roster
        instances = roster.registry.all()
        shown = [
            views.pool(spec, instances)
            for _, spec in sorted(roster.pools.items())
            if spec.admits(principal.tenant)
        ]
        return Json({"pools": shown})
