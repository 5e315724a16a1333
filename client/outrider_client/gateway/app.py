"""The HTTP endpoints as an ASGI app, and the error handlers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import ValidationError
from sse_starlette import EventSourceResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.types import Scope

from outrider_client.connection.link_state import LinkState
from outrider_client.core.gateway_config import GatewayConfig
from outrider_client.gateway.completion import GatewayCompletion
from outrider_client.gateway.errors import NO_JSON_OBJECT, ApiError, invalid_request
from outrider_client.gateway.gateway import Gateway
from outrider_client.gateway.middleware import (
    ENDPOINTS,
    BodyLimitMiddleware,
    FaultMiddleware,
    RefusingMiddleware,
    parsed_json,
    wrong_key,
    wrong_origin,
)
from outrider_client.gateway.request_bodies import ChatRequest, CompletionRequest, LinkCommand
from outrider_client.gateway.request_mapping import (
    GenerationRequest,
    check_fences,
    map_chat_request,
    map_completion_request,
)
from outrider_client.gateway.response_bodies import (
    Body,
    ChatFormatter,
    CompletionFormatter,
    ResponseFormatter,
    response_head,
)
from outrider_client.gateway.responses import DisconnectedError, respond
from outrider_client.gateway.responses_api import ResponsesFormatter, ResponsesRequest
from outrider_proto.addresses import is_loopback_host
from outrider_proto.frames import Sampling

if TYPE_CHECKING:
    from outrider_client.connection.emulated import EmulatedLink

AnyRequest = TypeVar("AnyRequest", ChatRequest, CompletionRequest, ResponsesRequest)
Result = TypeVar("Result")
PAGE = Path(__file__).parent / "page"
_CLIENT_CLOSED_REQUEST = 499  # as nginx has it
_NO_ENDPOINT = (
    "path: there is none such; the API is POST /v1/chat/completions, POST /v1/responses, POST /v1/completions and GET"
    " /v1/models"
)
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # The modules of one page must be of one version: asked for again each time, and not sent again unless changed.
    "Cache-Control": "no-cache",
}


def create_app(gateway: Gateway, emulated: EmulatedLink | None = None) -> FastAPI:
    """Build the ASGI app. `emulated` is the emulated link to the server, if there is one."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with gateway.running():
            yield

    app = FastAPI(title="Outrider gateway", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    _add_errors(app, gateway)
    _add_middleware(app, gateway.config)
    _add_completions(app, gateway)
    _add_models(app, gateway)
    _add_state(app, gateway)
    _add_link(app, gateway, emulated)
    if PAGE.is_dir():
        app.router.routes.append(_PageMount("/", _Page(directory=PAGE, html=True)))
    return app


def _add_middleware(app: FastAPI, config: GatewayConfig) -> None:
    # The last one added is asked first. Preflight requests have no key: they are answered after the check of their
    # origin, and before that of the key, whose errors pages of allowed origins may read.
    app.add_middleware(BodyLimitMiddleware)
    app.add_middleware(RefusingMiddleware, refusal=partial(wrong_key, api_key=config.api_key))
    if config.allow_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.allow_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),  # OpenAI's client sends a dozen of its own
            expose_headers=("Retry-After",),
            allow_private_network=True,  # a public site may be allowed, and this is a private address
        )
    only_loopback = is_loopback_host(config.host)
    own_pages = partial(wrong_origin, allowed=config.allow_origins, only_loopback=only_loopback)
    app.add_middleware(RefusingMiddleware, refusal=own_pages)


def _add_completions(app: FastAPI, gateway: Gateway) -> None:
    async def answered(
        request: Request,
        kind: type[AnyRequest],
        map_to: Callable[[AnyRequest, Mapping[str, str], Sampling], list[GenerationRequest]],
        formatted: Callable[[AnyRequest], Callable[[GatewayCompletion, int], ResponseFormatter]],
    ) -> Response:
        def parsed(data: bytes) -> tuple[AnyRequest, list[GenerationRequest]]:
            value = parsed_json(data)
            body = kind.model_validate(value)
            # As it came: what the endpoint has no use for may be marked as private, too.
            check_fences(value, body.outrider, request.headers)
            return body, map_to(body, request.headers, gateway.client.sampling)

        body, requests = await _in_thread(request, gateway, parsed)
        for one in requests:
            await gateway.compile_schema(one)
        completions = await _in_thread(
            request, gateway, lambda _: [GatewayCompletion(gateway, one) for one in requests]
        )
        make = formatted(body)
        return await respond(request, [make(one, index) for index, one in enumerate(completions)], gateway)

    def chat_formatter(body: ChatRequest) -> partial[ChatFormatter]:
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        return partial(ChatFormatter, response_head("chatcmpl", kind, body.model))

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(request: Request) -> Response:
        return await answered(request, ChatRequest, map_chat_request, chat_formatter)

    def chat_requests(
        body: ResponsesRequest, headers: Mapping[str, str], defaults: Sampling
    ) -> list[GenerationRequest]:
        # Its events have no way to take text back.
        return [replace(one, takes_back=False) for one in map_chat_request(body.chat(), headers, defaults)]

    @app.post("/v1/responses", response_model=None)
    async def respond_to(request: Request) -> Response:
        return await answered(
            request, ResponsesRequest, chat_requests, lambda body: lambda one, _: ResponsesFormatter(one, body)
        )

    @app.post("/v1/completions", response_model=None)
    async def complete(request: Request) -> Response:
        def formatter(body: CompletionRequest) -> partial[CompletionFormatter]:
            return partial(CompletionFormatter, response_head("cmpl", "text_completion", body.model))

        return await answered(request, CompletionRequest, map_completion_request, formatter)


async def _in_thread(request: Request, gateway: Gateway, work: Callable[[bytes], Result]) -> Result:
    """Do with a body what takes seconds where it is long: parse, tokenize. All other answers would wait."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise ApiError(400, NO_JSON_OBJECT)
    data = await request.body()
    return await asyncio.get_running_loop().run_in_executor(gateway.readers, work, data)


def _add_models(app: FastAPI, gateway: Gateway) -> None:
    described = {
        "object": "model",
        "created": int(time.time()),
        "owned_by": "outrider",
        "root": gateway.target_name,
        "parent": None,
        "max_model_len": gateway.max_context,
    }

    @app.get("/v1/models")
    async def models() -> Body:
        return {"object": "list", "data": [{"id": name, **described} for name in gateway.names]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Body:
        gateway.check_model(name)
        return {"id": name, **described}


def _add_state(app: FastAPI, gateway: Gateway) -> None:
    @app.get("/health")
    async def health() -> Body:
        gateway.watch.wake()
        state = gateway.watch.state
        status = "ok" if state in (LinkState.ONLINE, LinkState.RESUMING) else "offline"
        health = {"status": status, "link": state.value, "model": gateway.names[0]}
        return health if gateway.mismatch is None else health | {"status": "mismatch", "mismatch": gateway.mismatch}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(gateway.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


def _add_link(app: FastAPI, gateway: Gateway, emulated: EmulatedLink | None) -> None:
    ends: Body = {
        "model": gateway.target_name,
        "server": gateway.client.server if emulated is None else emulated.server,
        "drafter": gateway.drafter,
    }

    def as_json(report: Body) -> Body:
        link = {"emulated": None if emulated is None else emulated.as_json}
        return ends | {"mismatch": gateway.mismatch} | report | link

    async def events() -> AsyncGenerator[dict[str, str], None]:
        try:
            async with contextlib.aclosing(gateway.watch.reports()) as reports:
                async for report in reports:
                    yield {"data": json.dumps(as_json(report))}
        except Exception as error:  # as in the streams of answers
            yield {"data": json.dumps(gateway.failed(error).body)}
            yield {"data": "[DONE]"}

    @app.get("/outrider/link", response_model=None)
    async def link() -> Response:
        return EventSourceResponse(events(), sep="\n")

    @app.post("/outrider/link")
    async def change(request: Request) -> Body:
        body = await _in_thread(request, gateway, lambda data: LinkCommand.model_validate(parsed_json(data)))
        if emulated is None:
            raise ApiError(409, "the link is a real one: start the gateway with --profile to have one to change")
        if body.profile is not None:
            # Checked here since `change` takes names of files, too, which apps must not open.
            if body.profile not in emulated.profiles:
                raise ApiError(400, f"profile: choose one of {', '.join(emulated.profiles)}", param="profile")
            emulated.change(body.profile)
        if body.cut is not None:
            (emulated.link.cut if body.cut else emulated.link.restore)()
        gateway.watch.notify()
        return as_json(gateway.watch.report)


def _add_errors(app: FastAPI, gateway: Gateway) -> None:
    def response(error: Exception) -> Response:
        failed = gateway.failed(error)
        return JSONResponse(failed.body, failed.status, failed.headers)

    # Of all errors but those below. Added before the others, so that pages of allowed origins may read these, too.
    app.add_middleware(FaultMiddleware, response=response)

    @app.exception_handler(ValidationError)
    async def invalid(_: Request, error: ValidationError) -> Response:
        return response(invalid_request(error.errors(include_url=False, include_input=False)))

    @app.exception_handler(ClientDisconnect)  # amid its body
    @app.exception_handler(DisconnectedError)
    async def gone(_: Request, error: Exception) -> Response:
        return Response(status_code=_CLIENT_CLOSED_REQUEST)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        return response(_http_error(request, error, app.routes))


def _http_error(request: Request, error: HTTPException, routes: Sequence[BaseRoute]) -> ApiError:
    match error.status_code:
        case 404:
            return ApiError(404, _NO_ENDPOINT, code="unknown_url")
        case 405:
            # The methods that a path takes; each has a route of its own.
            fits = [r for r in routes if isinstance(r, Route) and r.matches(request.scope)[0] is Match.PARTIAL]
            allowed = ", ".join(sorted({method for route in fits for method in route.methods or ()}))
            refused = ApiError(405, f"method: this path takes {allowed} only", code="method_not_supported")
            refused.headers["Allow"] = allowed
            return refused
        case status:
            return ApiError(status, str(error.detail))


class _PageMount(Mount):
    """Leaves all other endpoints' paths alone: an unknown one, or a wrong method, would look like a missing file."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_page = scope.get("method") in ("GET", "HEAD") and not scope["path"].startswith(ENDPOINTS)
        return super().matches(scope) if is_page else (Match.NONE, {})


class _Page(StaticFiles):
    """Lets the page load and call only this gateway, and no other site embed it."""

    def file_response(self, *args: Any, **options: Any) -> Response:  # Any: as StaticFiles has them
        response = super().file_response(*args, **options)
        response.headers.update(_PAGE_HEADERS)
        return response
