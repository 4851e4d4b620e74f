"""One engine, many visitors: they are served one at a time, first come, first served."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.errors import EagleChatError
from eagle_chat.core.events import Event

if TYPE_CHECKING:
    from eagle_chat.core.engine import Engine

HEARTBEAT_SECONDS = 5.0
"""A visitor in the line is told its place this often, even where it has not moved."""


class FullError(EagleChatError):
    """The line is as long as it may get."""


@dataclass(frozen=True)
class Place:
    """A visitor's place in the line: how many come before."""

    ahead: int


@dataclass(eq=False)
class _Ticket:
    moved: asyncio.Event = field(default_factory=asyncio.Event)


class Desk:
    """Owns the engine and its one decoding state, so that a conversation's next turn finds its tokens in the cache.

    All methods belong to one event loop; the engine runs in a thread of its own.
    """

    def __init__(self, engine: Engine, most_waiting: int) -> None:
        self.engine, self.most_waiting = engine, most_waiting
        self._state = engine.new_state()
        self._line: list[_Ticket] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")

    @property
    def running(self) -> int:
        """1 while an answer is being made."""
        return min(len(self._line), 1)

    @property
    def waiting(self) -> int:
        """Visitors in the line."""
        return max(len(self._line) - 1, 0)

    @property
    def full(self) -> bool:
        """Whether a new visitor would be turned away."""
        return len(self._line) > self.most_waiting

    async def answer(
        self, prompt: Sequence[int], sampling: SamplingConfig, tree: TreeConfig
    ) -> AsyncGenerator[Event | Place, None]:
        """`Place` while others come first, then the engine's events.

        Closing the iterator, or cancelling whoever waits for it, frees the engine after the cycle it is in. FullError
        where too many wait already.
        """
        if self.full:
            raise FullError(f"at most {self.most_waiting} waiting questions expected, found that many: ask again later")
        ticket = _Ticket()
        self._line.append(ticket)
        try:
            while ahead := self._line.index(ticket):
                yield Place(ahead)
                ticket.moved.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(ticket.moved.wait(), HEARTBEAT_SECONDS)
            work = _Work(asyncio.get_running_loop())
            done = asyncio.wrap_future(self._thread.submit(self._run, work, prompt, sampling, tree))
            try:
                while (event := await work.next()) is not None:
                    yield event
            finally:
                work.cancelled.set()
                with anyio.CancelScope(shield=True):  # until then the engine is not free
                    await asyncio.wait([done])
                failure = done.exception()  # asked for in any case: else Python complains that nobody did
            if failure is not None:
                raise failure
        finally:
            self._line.remove(ticket)
            for other in self._line:
                other.moved.set()

    def _run(self, work: _Work, prompt: Sequence[int], sampling: SamplingConfig, tree: TreeConfig) -> None:
        """In the engine's thread: all events, or those up to the cancellation."""
        try:
            events = self.engine.stream(prompt, sampling=sampling, tree=tree, state=self._state)
            try:
                for event in events:
                    if work.cancelled.is_set():
                        return
                    work.put(event)
            finally:
                events.close()
        except BaseException:
            self._state = self.engine.new_state()  # nobody knows what the old one holds now
            raise
        finally:
            work.put(None)

    def close(self) -> None:
        """End the engine's thread after the cycle it is in."""
        self._thread.shutdown(wait=True, cancel_futures=True)


class _Work:
    """Events on their way from the engine's thread to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.cancelled = threading.Event()
        self._loop = loop
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()

    def put(self, event: Event | None) -> None:
        """From the thread; None is the end."""
        with suppress(RuntimeError):  # the loop has ended, and with it whoever waited
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def next(self) -> Event | None:
        """In the loop."""
        return await self._events.get()
