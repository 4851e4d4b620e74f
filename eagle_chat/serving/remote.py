"""A server in the place of our engine: the same questions in, the same kinds of events out."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

import anyio
from anyio.from_thread import start_blocking_portal

from eagle_chat.core.chat import Message
from eagle_chat.core.config import LoadConfig, SamplingConfig, TreeConfig
from eagle_chat.core.errors import EagleChatError, UserError
from eagle_chat.core.events import Event, Started
from eagle_chat.serving.client import Client, Model, Piece, ServerError
from eagle_chat.serving.config import ServerConfig
from eagle_chat.serving.counters import Counters
from eagle_chat.serving.telling import Item, Telling

EXTENDED = ("vllm", "sglang", "eagle-chat")
"""Owners of models whose servers take more than OpenAI's fields."""
LOOK_SECONDS = 0.1
"""How often a person's wish to stop is looked for while the server is silent."""
COUNT_SECONDS = 1.0
"""How often the server's counters are read while it answers."""
LAST_COUNTS = 5
"""The counters may lag behind the text: so often they are read at the end until they hold the whole answer."""


def connect(server: ServerConfig, load: LoadConfig, stopped: Callable[[], bool] = lambda: False) -> RemoteEngine:
    """The engine behind a URL, asked for the model `load.base`, or where that is our default for the first it has.

    `stopped` is asked several times a second while the server is silent; True ends the answer. UserError where the
    server has no such model, ServerError where it cannot be reached.
    """
    url = server.url
    assert url is not None

    async def ask() -> list[Model]:
        async with Client(url, server.api_key) as client:
            return await client.models()

    with start_blocking_portal() as portal:  # a loop of its own: the caller may be inside another one
        models = portal.call(ask)
    return RemoteEngine(url, choose_model(url, models, load.base), server.api_key, stopped)


def choose_model(url: str, models: Sequence[Model], asked: str) -> Model:
    """The model called `asked`, or where that is our default the first one; UserError where there is no such model."""
    if not models:
        raise EagleChatError(f"a server with a model expected at {url}, found none there: load one")
    found = next((model for model in models if model.id == asked), None)
    if found is None and asked != LoadConfig.base:
        raise UserError(
            f"a model of the server expected, found {asked!r}: give --base with one of "
            f"{', '.join(model.id for model in models)}"
        )
    return found or models[0]


def request_body(model: Model, messages: Sequence[Message], sampling: SamplingConfig) -> dict[str, Any]:
    """A request of /v1/chat/completions.

    A server of which we know that it takes them gets all fields, so that no default of its own comes in between;
    another one gets those beyond OpenAI's only where they were asked for.
    """
    known = model.owner in EXTENDED
    body: dict[str, Any] = {
        "model": model.id,
        "messages": list(messages),
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stream_options": {"include_usage": True, **({"continuous_usage_stats": True} if known else {})},
    }
    more: dict[str, tuple[float, float]] = {
        "top_k": (sampling.top_k, 0),
        "min_p": (sampling.min_p, 0.0),
        "ignore_eos": (sampling.ignore_stop_ids, False),
    }
    body |= {name: value for name, (value, default) in more.items() if known or value != default}
    if model.owner in ("vllm", "eagle-chat"):
        body["return_token_ids"] = True
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    return body


class _NoTokens:
    """Stands where our engine has its tokenizer."""

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """UserError: the tokens are the server's business."""
        raise UserError(
            "a model in this process expected, found a server: it cannot go on with an answer; ask for more"
        )

    def decode(self, token_ids: Sequence[int]) -> str:
        """UserError, like `encode`."""
        raise UserError("a model in this process expected, found a server: its tokens cannot be read here")


class RemoteEngine:
    """Answers with the help of a server. Has the methods of `Engine` that a chat needs."""

    head = None

    def __init__(self, url: str, model: Model, api_key: str | None, stopped: Callable[[], bool]) -> None:
        self.url, self.model, self.name = url, model, model.id
        self.chat = _NoTokens()
        self._api_key, self._stopped = api_key, stopped

    def new_state(self) -> object:
        """A fresh conversation: the server keeps none, it is told everything at each question."""
        return object()

    def describe(self) -> dict[str, Any]:
        """Model and server; the head, device and number format are the server's business."""
        owner = self.model.owner or "server"
        return {"target": self.name, "head": None, "device": f"{owner} at {self.url}", "dtype": "", "versions": {}}

    def stream(
        self,
        prompt: Sequence[Message] | Sequence[int],
        sampling: SamplingConfig | None = None,
        tree: TreeConfig | None = None,
        state: object = None,
        trace: bool = False,
    ) -> Generator[Event, None, None]:
        """Answer a conversation as events; see `Committed` and `Reported` for what a server can tell.

        Closing the iterator ends the request, so that the server stops too. ServerError where nothing could be begun;
        a server that breaks off later gives `Finished` with the reason "error".
        """
        sampling = sampling or SamplingConfig()
        if tree not in (None, TreeConfig()):
            raise UserError(
                "a server drafts as it was started, found wishes for another draft: leave --policy, --depth, --top-k "
                "and --total-tokens out"
            )
        messages = [item for item in prompt if not isinstance(item, int)]
        if len(messages) != len(prompt):
            self.chat.encode(messages)
        started = Started(
            prompt_tokens=0, reused_tokens=0, target=self.name, policy="server", tree={}, sampling=asdict(sampling),
            **{name: value for name, value in self.describe().items() if name != "target"},
        )  # fmt: skip
        body = request_body(self.model, messages, sampling)
        items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        with start_blocking_portal() as portal:
            task = portal.start_task_soon(_receive, self.url, self._api_key, body, items.put)
            try:
                yield from Telling(started).events(self._items(items, task))
            finally:
                task.cancel()

    def _items(self, items: queue.SimpleQueue[Item], task: Future[None]) -> Iterator[Item]:
        """What arrives, until a person wants to stop."""
        while not self._stopped():
            try:
                yield items.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if task.done():
                    task.result()  # a fault of ours: it must not look like a server that is silent for ever


async def _receive(url: str, api_key: str | None, body: dict[str, Any], put: Callable[[Item], None]) -> None:
    """Everything about one answer, to `put`; the last is a ServerError or None."""

    def tell(what: Piece | Counters | ServerError | None) -> None:
        put((time.perf_counter(), what))

    async with Client(url, api_key) as client:
        try:
            before = await client.counters()
            async with anyio.create_task_group() as group:
                if before is not None:
                    group.start_soon(_count, client, before, tell)
                produced = await _read(client, body, tell)
                group.cancel_scope.cancel()
            if before is not None:
                await _count_rest(client, before, produced, tell)
            tell(None)
        except* ServerError as errors:
            tell(_first(errors))


def _first(errors: BaseExceptionGroup[ServerError]) -> ServerError:
    inner = errors.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner


async def _read(client: Client, body: dict[str, Any], tell: Callable[[Piece], None]) -> int:
    """Pass on the pieces; how many tokens the server says it made, 0 where it does not."""
    produced = 0
    async with contextlib.aclosing(client.answer(body)) as pieces:
        async for piece in pieces:
            tell(piece)
            if piece.usage:
                produced = piece.usage.get("completion_tokens") or 0
    return produced


async def _count(client: Client, before: Counters, tell: Callable[[Counters], None]) -> None:
    while True:
        await anyio.sleep(COUNT_SECONDS)
        now = await client.counters()
        if now is not None:
            tell(now.since(before))


async def _count_rest(client: Client, before: Counters, produced: int, tell: Callable[[Counters], None]) -> None:
    for _ in range(LAST_COUNTS):
        now = await client.counters()
        if now is not None and now.since(before).generated_tokens >= produced:
            tell(now.since(before))
            return
        await anyio.sleep(LOOK_SECONDS)
