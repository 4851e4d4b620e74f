"""The engine behind the page: loaded in the background, and asked by one conversation at a time.

One worker thread owns the engine. What people ask are jobs in its queue, first come, first served, so answers cannot
mix. A job's results wait for its consumer; where the consumer goes away, the job ends after its current cycle.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from eagle_chat.core.errors import EagleChatError, UserError
from eagle_chat.webui import limits
from eagle_chat.webui.measured import Measured, Measurements

if TYPE_CHECKING:
    from eagle_chat.core.engine import Engine
    from eagle_chat.core.state import DecodingState

INTERVAL = 0.1
"""Least seconds between two pictures of one answer."""
PATIENCE = 0.5
"""Seconds after which a waiting consumer is told where it stands."""
_END = object()

Phase = Literal["loading", "ready", "failed"]


@dataclass(frozen=True)
class Status:
    """`message`: why loading failed. `jobs`: those in the queue, the running one included. `seconds`: since the
    start of loading, while it goes on."""

    phase: Phase
    message: str = ""
    jobs: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Waiting:
    """A consumer's place: how many jobs are in front, and whether the model is still being loaded."""

    ahead: int
    loading: bool


class Job:
    """Something for the worker to do. `work(job)` runs on its thread and yields results; it looks at `stopping`."""

    def __init__(self, owner: str, work: Callable[[Job], Iterator[Any]], service: EngineService) -> None:
        self.owner, self._work, self._service = owner, work, service
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stop = threading.Event()
        self.begun = False
        self.error: EagleChatError | None = None

    @property
    def stopping(self) -> bool:
        """Whether the job should end."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Ask the job to end; one that has not begun leaves the queue at once."""
        self._stop.set()
        if self._service.withdraw(self):
            self._results.put(_END)

    def run(self) -> None:
        """Work to the end; on the worker's thread."""
        try:
            with closing(self._work(self)) as results:  # type: ignore[type-var]  # generators can be closed
                for result in results:
                    self._results.put(result)
        except Exception as error:  # noqa: BLE001 - told to the consumer; the worker must live on for the others
            self.error = _as_told(error)
        finally:
            self._results.put(_END)

    def fail(self, error: EagleChatError) -> None:
        """End without having begun."""
        self.error = error
        self._results.put(_END)

    def batches(self) -> Iterator[Waiting | list[Any]]:
        """Results as they come, those of `INTERVAL` together; while there are none, now and then `Waiting`.

        The work's error is raised here. A consumer that leaves stops the job.
        """
        ended = False
        try:
            while not ended:
                batch = self._next()
                if batch and batch[-1] is _END:
                    ended = True
                    batch.pop()
                yield batch or self._service.place_of(self)
            if self.error is not None:
                raise self.error
        finally:
            self.stop()

    def _next(self) -> list[Any]:
        try:
            batch = [self._results.get(timeout=PATIENCE)]
        except queue.Empty:
            return []
        until = time.monotonic() + INTERVAL
        while batch[-1] is not _END and (left := until - time.monotonic()) > 0:
            try:
                batch.append(self._results.get(timeout=left))
            except queue.Empty:
                break
        return batch


class EngineService:
    """Loads the engine, keeps heads and decoding states, and runs jobs."""

    def __init__(
        self,
        load: Callable[[], Engine],
        change: Callable[[Engine, str], Engine] | None = None,
        heads: tuple[str, ...] = (),
        is_server: bool = False,
    ) -> None:
        """`load` makes the engine, `change(engine, name)` one with another head. `heads`: names that may be chosen
        besides the loaded engine's own. `is_server`: the engine is a server (see `server.py`)."""
        self._load, self._change = load, change
        self.heads, self.is_server = heads, is_server
        self._engines: dict[str, Engine] = {}
        self.measurements = Measurements()
        self._states: OrderedDict[str, DecodingState] = OrderedDict()
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._phase: Phase = "loading"
        self._failure: EagleChatError | None = None
        self._started = time.monotonic()
        self._worker = threading.Thread(target=self._run, name="eagle-chat-engine", daemon=True)

    def start(self) -> None:
        """Begin to load; returns at once."""
        self._worker.start()

    @property
    def status(self) -> Status:
        """What the page says about the engine."""
        with self._changed:
            seconds = time.monotonic() - self._started if self._phase == "loading" else 0.0
            return Status(self._phase, str(self._failure or ""), len(self._jobs), seconds)

    @property
    def loaded(self) -> Engine | None:
        """The engine with its own head, once it is there."""
        return self._engines.get("")

    @property
    def stopping(self) -> bool:
        """Whether the running job should end; for the worker's thread."""
        return self._jobs[0].stopping

    def measured(self, head: str = "") -> Measured:
        """What is known of the costs with a head."""
        return self.measurements.of(self._engines.get(head))

    def submit(self, owner: str, work: Callable[[Job], Iterator[Any]]) -> Job:
        """Put a job at the queue's end. UserError where the queue is full or the owner has a job already."""
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if any(job.owner == owner and not job.stopping for job in self._jobs):
                raise UserError("one question at a time expected, found an answer still being made: wait or stop it")
            if len(self._jobs) >= limits.WAITING:
                raise UserError(
                    f"at most {limits.WAITING} questions in the queue expected, found it full: try again in a minute"
                )
            job = Job(owner, work, self)
            self._jobs.append(job)
            self._changed.notify_all()
            return job

    def withdraw(self, job: Job) -> bool:
        """Take a job that has not begun out of the queue; whether it was there."""
        with self._changed:
            found = job in self._jobs and not job.begun
            if found:
                self._jobs.remove(job)
            return found

    def place_of(self, job: Job) -> Waiting:
        """Where the job stands."""
        with self._changed:
            ahead = self._jobs.index(job) if job in self._jobs else 0
            return Waiting(ahead, self._phase == "loading")

    def engine(self, head: str = "") -> Engine:
        """The engine with a head; "" is the loaded one's own. For the worker's thread: a head may have to be read."""
        if head not in self._engines:
            if head not in self.heads or self._change is None:
                raise UserError(f"one of the page's heads expected, found {head!r}: choose another")
            self._engines[head] = self._change(self._engines[""], head)
        return self._engines[head]

    def state(self, owner: str, engine: Engine) -> DecodingState:
        """The decoding state of a session, a fresh one where it was given up or belongs to another head."""
        state = self._states.pop(owner, None)
        if state is None or state.owner is not engine:
            state = engine.new_state()
        self._states[owner] = state
        while len(self._states) > limits.STATES:
            self._states.popitem(last=False)
        return state

    def forget(self, owner: str) -> None:
        """A session has gone: end its job, free its memory."""
        with self._changed:
            owned = [job for job in self._jobs if job.owner == owner]
        for job in owned:
            job.stop()
        self._states.pop(owner, None)

    def _run(self) -> None:
        try:
            self._engines[""] = self._load()
        except Exception as error:  # noqa: BLE001 - shown on the page; the process must live on to show it
            self._failure = _as_told(error)
        with self._changed:
            self._phase = "failed" if self._failure else "ready"
            if self._failure:
                for job in self._jobs:
                    job.fail(self._failure)
                self._jobs.clear()
                return
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs)
                job = self._jobs[0]
                job.begun = True
            job.run()
            with self._changed:
                self._jobs.popleft()


def _as_told(error: Exception) -> EagleChatError:
    return error if isinstance(error, EagleChatError) else EagleChatError(f"{type(error).__name__}: {error}")
