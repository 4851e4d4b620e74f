"""Our server in a thread, on an engine whose cycles happen when a test says so."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import uvicorn

from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.events import Committed, Event, Finished, Started
from eagle_chat.serving.server import Serving, create_app
from tests.cli.fake_engine import committed
from tests.patience import PATIENCE

"""Seconds after which a test that waits has failed."""


class GatedEngine:
    """`cycles` permits are needed for as many cycles; `free`: every cycle may happen at once. `closed`: answers that
    were not finished. `running`: answers that are being made; more than one at a time is written down in `overlaps`."""

    def __init__(self, free: bool = True) -> None:
        self.free, self.cycles = free, threading.Semaphore(0)
        self.target = SimpleNamespace(context_limit=1000)
        self.chat = SimpleNamespace(encode=lambda messages: [len(message["content"]) for message in messages])
        self.asked: list[tuple[list[int], SamplingConfig, TreeConfig]] = []
        self.begun, self.closed = threading.Semaphore(0), threading.Semaphore(0)
        self.running, self.overlaps, self.states = 0, 0, 0
        self.fault: Exception | None = None
        self.pieces = ["One", " two", " three", "."]

    def new_state(self) -> object:
        self.states += 1
        return object()

    def describe(self) -> dict[str, Any]:
        return {"target": "gated", "head": "h", "device": "cpu", "dtype": "float32", "versions": {}}

    def stream(self, prompt: list[int], *, sampling: Any, tree: Any, state: object) -> Iterator[Event]:
        self.asked.append((prompt, sampling, tree))
        return self._events(len(prompt))

    def _events(self, prompt_tokens: int) -> Iterator[Event]:
        self.running += 1
        self.overlaps += self.running > 1
        finished = False
        try:
            yield Started(prompt_tokens, 0, "gated", "h", "dynamic", {}, {"seed": 0}, "cpu", "float32", {})
            self.begun.release()
            for cycle, text in enumerate(self.pieces):
                assert self.free or self.cycles.acquire(timeout=PATIENCE)
                yield self._committed(cycle, text)
            if self.fault is not None:
                raise self.fault
            finished = True
            yield Finished("stop", "", len(self.pieces) - 1, 2 * len(self.pieces) - 1)
        finally:
            self.running -= 1
            if not finished:
                self.closed.release()

    @staticmethod
    def _committed(cycle: int, text: str) -> Committed:
        return committed(cycle, text)


@contextmanager
def served(engine: GatedEngine, **options: Any) -> Iterator[str]:
    """The server's URL."""
    serving = Serving("gated", SamplingConfig(max_new_tokens=50), TreeConfig(), **options)
    config = uvicorn.Config(create_app(engine, serving), log_level="error")  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = server.force_exit = True
            for _ in range(100):  # an engine that waits for a cycle would keep its thread for ever
                engine.cycles.release()
            thread.join(PATIENCE)
