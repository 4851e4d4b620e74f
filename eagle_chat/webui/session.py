"""What belongs to one person (one browser tab, one API client), and the register of all of them."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

from eagle_chat.core import recording
from eagle_chat.core.conversation import Conversation, Turn
from eagle_chat.core.errors import UserError
from eagle_chat.core.recording import Run
from eagle_chat.webui import limits
from eagle_chat.webui.live import run_json
from eagle_chat.webui.service import Job

SETTLING = 20.0
"""Seconds that somebody waits for what they stopped to end after its cycle."""
ANSWER, COMPARISON, DRAWS = "an answer", "a comparison", "the draws of “Is it lossless?”"
"""What may be in the making."""


class BusyError(UserError):
    """Something else is still in the making; that ends by itself."""


@dataclass(frozen=True)
class Record:
    """An answer's recording, packed, and what the explorer is told of the run, as JSON."""

    packed: bytes
    page: str


def pack(runs: list[Run]) -> bytes:
    """Runs as the compressed lines of a recording: as objects they are many times as large."""
    return zlib.compress("".join(recording.lines(runs)).encode())


def unpack(packed: bytes) -> list[Run]:
    """What was packed."""
    return recording.parse(zlib.decompress(packed).decode())


@dataclass(frozen=True)
class Remark:
    """Something said about a question, as HTML, that pictures of its answer shall not wipe away before `until`.
    `passing`: it holds only while the answer is in the making."""

    text: str = ""
    until: float = 0.0
    passing: bool = False

    def now(self) -> str:
        """The text, as long as it is to be read."""
        return self.text if time.monotonic() < self.until else ""


@dataclass
class Session:
    """`records`: for each turn its recording, as long as it is kept. `pending`: a question taken but not yet put to the
    engine; `replacing`: it is the last turn's, whose answer goes as soon as there is another; `unwanted`: somebody has
    stopped it already. `job`: what is in the making, `doing`: the same in words. `opened`: a recording that is shown
    instead of the conversation, packed; `compared`: the last comparison. `chats`: counts the conversations begun, so
    that an answer knows when its own has been left. `left`: whether the connection was lost; it may have been for a
    moment."""

    key: str
    conversation: Conversation = field(default_factory=Conversation)
    records: list[Record | None] = field(default_factory=list)
    pending: str | None = None
    replacing: bool = False
    job: Job | None = None
    doing: str = ANSWER
    chats: int = 0
    remark: Remark = field(default_factory=Remark)
    opened: bytes | None = None
    compared: bytes | None = None
    unwanted: bool = False
    last_used: float = 0.0
    left: bool = False
    greeted: bool = False

    @property
    def busy(self) -> bool:
        """Whether anything is being made or about to be."""
        return self.job is not None or self.pending is not None

    def check_free(self) -> None:
        """BusyError where something is in the making."""
        if self.busy:
            doing = self.doing if self.job is not None else ANSWER
            raise BusyError(f"one question at a time expected, found {doing} still being made: wait or stop it")

    def begin(self, job: Job, doing: str) -> None:
        """`job` is in the making."""
        self.job, self.doing = job, doing

    def settle(self) -> None:
        """Wait for what was stopped to end after its cycle, but not for ever."""
        until = time.monotonic() + SETTLING
        while self.job is not None and self.job.stopping and time.monotonic() < until:
            time.sleep(0.02)

    def forget_passing(self) -> bool:
        """Forget what was said where it held only until now; whether it did."""
        passing = self.remark.passing
        if passing:
            self.remark = Remark()
        return passing

    def take(self, question: str | None) -> None:
        """Accept a question as the next one. UserError where that is not possible now."""
        text = limits.check_text(question, limits.MESSAGE, "a question")
        if not text.strip():
            raise UserError("a question expected, found none: write one")
        self.check_free()
        if len(self.conversation.turns) >= limits.TURNS:
            raise UserError(f"a conversation of at most {limits.TURNS} questions expected: begin a new one")
        self._begin(text, replacing=False)

    def take_again(self) -> str:
        """Accept the last question once more; it. Its old answer stays until there is another."""
        question = self._last_question()
        self._begin(question, replacing=True)
        return question

    def _begin(self, question: str, replacing: bool) -> None:
        self.pending, self.replacing, self.unwanted, self.remark = question, replacing, False, Remark()

    def give_up(self) -> None:
        """The pending question, or the one being answered, comes to nothing."""
        self.pending, self.replacing = None, False

    @property
    def before(self) -> list[Turn]:
        """The turns before the question at hand."""
        turns = self.conversation.turns
        return turns[:-1] if self.replacing else turns

    def take_back(self) -> str:
        """Remove the last question with its answer; the question."""
        question = self._last_question()
        self._drop_last()
        self.opened = None
        return question

    def _last_question(self) -> str:
        self.check_free()
        last = self.conversation.last
        if last is None:
            raise UserError("an answer expected, found none yet: ask something first")
        return last.question

    def _drop_last(self) -> None:
        self.conversation = self.conversation.before_last()
        self.records.pop()

    def clear(self) -> None:
        """Begin a new conversation; what is being made beside it goes on."""
        if self.doing == ANSWER:
            self.stop()
        self.give_up()
        self.chats += 1
        self.conversation, self.records, self.opened, self.remark = Conversation(), [], None, Remark()

    def stop(self) -> None:
        """End what is being made after its cycle, and what is pending as soon as it is begun."""
        self.unwanted = True
        if self.job is not None:
            self.job.stop()

    def keep(self, turn: Turn) -> None:
        """Add a finished turn, or put it in place of the last; its events are packed away, and those of old turns
        dropped."""
        if self.replacing:
            self._drop_last()
        self.give_up()
        self.opened = None
        run = Run(turn.question, turn.events)
        turn.events = []
        self.conversation = Conversation(self.conversation.system, [*self.conversation.turns, turn])
        self.records.append(Record(pack([run]), run_json(run)))
        if len(self.records) > limits.KEPT_RECORDS:
            self.records[-limits.KEPT_RECORDS - 1] = None

    def runs(self) -> list[Run]:
        """The recording that is open, else the conversation's answers as far as they are kept."""
        if self.opened is not None:
            return unpack(self.opened)
        return [run for record in self.records if record is not None for run in unpack(record.packed)]

    def pages(self) -> list[str]:
        """The newest answers for the explorer, as many as are quickly sent; the last one in any case."""
        chosen: list[str] = []
        for record in reversed(self.records):
            if record is None or (chosen and sum(map(len, chosen)) + len(record.page) > limits.SHOWN):
                break
            chosen.insert(0, record.page)
        return chosen


class Sessions:
    """All sessions by key. `gone` is told the key of each that ends."""

    def __init__(self, gone: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._gone, self._clock = gone, clock
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: str) -> Session:
        """The session of that key, a new one the first time. UserError where there are too many."""
        with self._lock:
            session = self._sessions.get(key)
            if session is None:
                self._make_room()
                session = self._sessions[key] = Session(key)
            session.last_used, session.left = self._clock(), False
            return session

    def leave(self, key: str) -> None:
        """The connection was lost. A sleeping laptop comes back, so the session only is the first to make room."""
        session = self._sessions.get(key)
        if session is not None:
            session.left = True

    def _make_room(self) -> None:
        if len(self._sessions) < limits.SESSIONS:
            return
        # A question that was taken and never put to the engine belongs to somebody who has left in between.
        idle = [one for one in self._sessions.values() if one.job is None]
        oldest = min(idle, key=lambda one: (not one.left, one.last_used), default=None)
        if oldest is None or not (oldest.left or self._clock() - oldest.last_used >= limits.IDLE_SECONDS):
            raise UserError(
                f"at most {limits.SESSIONS} people at once expected, found that many here: try again in a few minutes"
            )
        del self._sessions[oldest.key]
        self._gone(oldest.key)
