"""A server in the place of our engine: the same questions in, the same kinds of events out."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from typing import Any

import anyio
from anyio.from_thread import start_blocking_portal

from eagle_chat.core.chat import Message
from eagle_chat.core.config import LoadConfig, SamplingConfig, TreeConfig
from eagle_chat.core.errors import EagleChatError, UserError
from eagle_chat.core.events import Committed, Event, Finished, FinishReason, Reported, Started
from eagle_chat.serving.client import COUNTED, Client, Model, Piece, ServerError
from eagle_chat.serving.config import ServerConfig
from eagle_chat.serving.counters import Counters

EXTENDED = ("vllm", "sglang", "eagle-chat")
"""Owners of models whose servers take more than OpenAI's fields."""
UNKNOWN_TOKEN = -1
"""Stands for a token whose id the server does not tell."""
LOOK_SECONDS = 0.1
"""How often a person's wish to stop is looked for while the server is silent."""
COUNT_SECONDS = 1.0
"""How often the server's counters are read while it answers."""
LAST_COUNTS = 5
"""The counters may lag behind the text: so often they are read at the end until they hold the whole answer."""
REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


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

    model = choose_model(url, anyio.run(ask), load.base)
    return RemoteEngine(url, model, server.api_key, stopped)


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
        items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        with start_blocking_portal() as portal:
            task = portal.start_task_soon(_receive, self.url, self._api_key, body, items.put)
            try:
                yield from _Telling(started).events(self._items(items, task))
            finally:
                task.cancel()

    def _items(self, items: queue.SimpleQueue[_Item], task: Future[None]) -> Iterator[_Item]:
        """What arrives, until a person wants to stop."""
        while not self._stopped():
            try:
                yield items.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if task.done():
                    task.result()  # a fault of ours: it must not look like a server that is silent for ever


_Item = tuple[float, Piece | Counters | ServerError | None]
"""When something arrived, and what; None is the end."""


async def _receive(url: str, api_key: str | None, body: dict[str, Any], put: Callable[[_Item], None]) -> None:
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


class _Telling:
    """Makes events of what arrives."""

    def __init__(self, started: Started) -> None:
        self._started = started
        self._last = time.perf_counter()
        self._number = self._tokens = 0
        self._report = Reported()
        self._made = 0
        self._counters: Counters | None = None
        self._reason: str | None = None

    def events(self, items: Iterator[_Item]) -> Iterator[Event]:
        """From `Started` to `Finished`."""
        waiting = True
        for at, item in items:
            if isinstance(item, ServerError):
                if waiting:
                    raise item
                yield self._finished("error", str(item))
                return
            if waiting:  # the server has taken the question
                yield self._started
                waiting = False
            if item is None:
                yield from self._ending(at)
                return
            if isinstance(item, Counters):
                self._counters = item
                yield from self._reported(**_of_counters(item))
            else:
                yield from self._piece(at, item)
        if waiting:
            yield self._started
        yield self._finished("cancelled", None)

    def _piece(self, at: float, piece: Piece) -> Iterator[Event]:
        if piece.ahead is not None:
            yield from self._reported(ahead=piece.ahead)
        if piece.finish_reason is not None:
            self._reason = piece.finish_reason
        usage = piece.usage or {}
        self._made = usage.get("completion_tokens") or self._made
        count = _num_tokens(piece, self._made, self._tokens)
        ids = list(piece.token_ids) if piece.token_ids else [UNKNOWN_TOKEN] * count
        if ids or piece.text:
            yield from self._reported(ahead=0)
            yield self._committed(at, ids, piece.text)
        if usage:
            told = usage.get("speculative") or {}
            own = {name: told[name] for name in COUNTED if name in told}
            yield from self._reported(prompt_tokens=usage.get("prompt_tokens"), **own)

    def _reported(self, **fields: Any) -> Iterator[Event]:
        """What is newly known, together with what was."""
        report = replace(self._report, **fields)
        if report != self._report:
            self._report = report
            yield report

    def _committed(self, at: float, ids: list[int], text: str) -> Committed:
        stage = "other" if self._number else "prefill"
        event = Committed(self._number, ids, ["target"] * len(ids), text, 0, 0, {stage: at - self._last})
        self._number, self._tokens, self._last = self._number + 1, self._tokens + len(ids), at
        return event

    def _ending(self, at: float) -> Iterator[Event]:
        missing = self._made - self._tokens
        if missing > 0:  # pieces of more than one token, which only the sum tells
            yield self._committed(self._last, [UNKNOWN_TOKEN] * missing, "")
        if self._counters is not None:
            yield from self._reported(others=self._counters.generated_tokens > self._tokens)
        reason = REASONS.get(self._reason or "stop")
        yield self._finished(reason or "error", None if reason else f"the server ended the answer: {self._reason}")

    def _finished(self, reason: FinishReason, message: str | None) -> Finished:
        return Finished(reason, "", 0, self._tokens, message)


def _num_tokens(piece: Piece, made: int, known: int) -> int:
    """How many tokens a piece has: by the server's count so far, else one where there is text."""
    if not piece.text:
        return 0
    return max(made - known, 0) if made else 1


def _of_counters(counters: Counters) -> dict[str, Any]:
    """Counters as fields of `Reported`. In a chain, the token at one place is judged where the one before was
    accepted."""
    accepted = [counters.by_position[place] for place in sorted(counters.by_position)]
    return {
        "cycles": counters.drafts,
        "draft_tokens": counters.draft_tokens,
        "accepted_tokens": counters.accepted_tokens,
        "judged_by_position": [counters.drafts, *accepted][: len(accepted)],
        "accepted_by_position": accepted,
    }
