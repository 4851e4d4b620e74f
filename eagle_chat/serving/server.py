"""Our engine behind OpenAI's chat protocol, for one user and any front end."""

from __future__ import annotations

import hmac
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.types import Send

from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.engine import Engine
from eagle_chat.core.errors import EagleChatError, UserError
from eagle_chat.core.events import Event
from eagle_chat.serving.desk import Desk, FullError, Place
from eagle_chat.serving.replies import Reply, error_object, sse
from eagle_chat.serving.requests import ChatRequest, UnknownModelError

OWNER = "eagle-chat"
RETRY_SECONDS = 5
"""What a visitor is told to wait where the line is full."""
LOG = logging.getLogger("eagle_chat.serving")
"""A line an answer, for whoever runs the server."""
GONE = 499
"""The status that logs use for a visitor who has left."""


@dataclass(frozen=True)
class Serving:
    """`name`: what the model is called. `most_waiting`: questions in the line before others are turned away."""

    name: str
    sampling: SamplingConfig
    tree: TreeConfig
    api_key: str | None = None
    most_waiting: int = 32


class _EventStream(StreamingResponse):
    """Closes what it streams as soon as the reader has gone, and not when Python gets round to it."""

    async def stream_response(self, send: Send) -> None:
        iterator = self.body_iterator
        assert isinstance(iterator, AsyncGenerator)
        async with aclosing(iterator):
            await super().stream_response(send)


def create_app(engine: Engine, serving: Serving) -> FastAPI:
    """The application: /v1/models, /v1/chat/completions, /health."""
    desk = Desk(engine, serving.most_waiting)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        desk.close()

    app = FastAPI(title="eagle-chat", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    gate = [Depends(_gate(serving.api_key))]
    app.add_exception_handler(EagleChatError, _our_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "running": desk.running, "waiting": desk.waiting}

    @app.get("/v1/models", dependencies=gate)
    async def models() -> dict[str, Any]:
        about = engine.describe()
        model = {
            "id": serving.name, "object": "model", "created": 0, "owned_by": OWNER,
            "max_model_len": engine.target.context_limit, "head": about["head"], "dtype": about["dtype"],
        }  # fmt: skip
        return {"object": "list", "data": [model]}

    @app.post("/v1/chat/completions", dependencies=gate)
    async def chat(request: ChatRequest, http: Request) -> Response:
        if request.model != serving.name:
            raise UnknownModelError(f"the model {serving.name!r} expected, found {request.model!r}: ask for that one")
        line = desk.running + desk.waiting
        sampling = request.sampling(serving.sampling)
        prompt = engine.chat.encode(request.conversation())
        limit = engine.target.context_limit
        if len(prompt) >= limit:
            raise UserError(f"a conversation of less than {limit} tokens expected, found {len(prompt)}: shorten it")
        if desk.full:
            raise FullError(f"{desk.waiting} questions wait already")
        events = desk.answer(prompt, sampling, serving.tree)
        reply = Reply(request, sampling.seed)
        if line:
            LOG.info("a question waits, %d come first", line)
        if request.stream:
            return _EventStream(_chunks(events, reply), media_type="text/event-stream")
        return await _unless_gone(http, _whole(events, reply))

    return app


@asynccontextmanager
async def _logged(events: AsyncGenerator[Event | Place, None], reply: Reply) -> AsyncIterator[None]:
    """Closes the events at the end, and says what became of them."""
    try:
        async with aclosing(events):
            yield
    finally:
        metrics = reply.metrics
        if metrics.started is None:
            LOG.info("a question was taken back")
        else:
            LOG.info("%s%s", metrics.stats_line(), "" if metrics.finished else ", the reader has left")


async def _chunks(events: AsyncGenerator[Event | Place, None], reply: Reply) -> AsyncGenerator[str, None]:
    """The body of a stream. A place in the line is a comment, which every client skips."""
    async with _logged(events, reply):
        yield reply.opening()
        try:
            async for event in events:
                text = f": ahead {event.ahead}\n\n" if isinstance(event, Place) else reply.add(event)
                if text:
                    yield text
        except Exception as error:  # noqa: BLE001 - the headers are gone: the stream is where it can be told
            yield sse(_told(error))
        yield "data: [DONE]\n\n"


async def _whole(events: AsyncGenerator[Event | Place, None], reply: Reply) -> Response:
    try:
        async with _logged(events, reply):
            async for event in events:
                if not isinstance(event, Place):
                    reply.add(event)
    except Exception as error:  # noqa: BLE001 - whatever the engine raises, the visitor is told and the server goes on
        told = _told(error)
        return JSONResponse(told, told["error"]["code"])
    finished = reply.metrics.finished
    if finished is not None and finished.reason == "error":
        return JSONResponse(error_object(finished.message or "the engine failed", 500, "server_error"), 500)
    return JSONResponse(reply.whole())


async def _unless_gone(http: Request, answer: Awaitable[Response]) -> Response:
    """The answer, or none where the visitor leaves before it is there."""
    result = Response(status_code=GONE)
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            while (await http.receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        group.start_soon(watch)
        result = await answer
        group.cancel_scope.cancel()
    return result


def _gate(api_key: str | None) -> Callable[[Request], None]:
    """Turns away whoever lacks the key."""
    expected = f"Bearer {api_key}".encode()

    def gate(request: Request) -> None:
        given = request.headers.get("authorization", "").encode("utf-8", "replace")
        if api_key is not None and not hmac.compare_digest(given, expected):
            raise HTTPException(401, "an API key expected in the header Authorization, found none or another")

    return gate


def _told(error: Exception) -> dict[str, Any]:
    if isinstance(error, EagleChatError):
        return error_object(str(error), 400)
    return error_object(f"the engine failed ({type(error).__name__}: {error})", 500, "server_error")


async def _our_error(_: Request, error: Exception) -> Response:
    if isinstance(error, FullError):
        return JSONResponse(error_object(str(error), 429, "rate_limit_error"), 429, {"Retry-After": str(RETRY_SECONDS)})
    status = 404 if isinstance(error, UnknownModelError) else 400
    return JSONResponse(error_object(str(error), status), status)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    return JSONResponse(
        error_object(f"{where or 'the body'}: {first['msg']}, found {first.get('input')!r:.80}", 400), 400
    )


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse(error_object(str(error.detail), error.status_code), error.status_code)
