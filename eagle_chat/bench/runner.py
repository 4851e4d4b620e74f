"""Every candidate answers every question, interleaved in one process.

A round is one question: its turns one after another, and within a turn all candidates in rotating order, each going on
with its own conversation and decoding state. Slow moments of the machine hit all candidates alike, and each answer
has a partner of the same question and time. A round that was not finished counts for nothing.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from eagle_chat.bench.machine import PeakMemory
from eagle_chat.bench.plan import Candidate, in_order
from eagle_chat.bench.prompts import Question
from eagle_chat.core.errors import EagleChatError, UserError
from eagle_chat.core.events import Committed, Event, Finished, Started
from eagle_chat.core.metrics import Metrics
from eagle_chat.core.progress import Report

if TYPE_CHECKING:
    from eagle_chat.core.chat import Message
    from eagle_chat.core.config import SamplingConfig
    from eagle_chat.core.engine import Engine
    from eagle_chat.core.state import DecodingState

WARM_UP_TOKENS = 16
Stop = Callable[[], bool]
"""Asked after every event: whether a person wants to stop."""


@dataclass(frozen=True)
class Answer:
    """One answer. `wall_seconds`: from asking to the end, prefill and tokenizing included. `peak_memory`: bytes."""

    question: Question
    turn: int
    started: Started
    committed: tuple[Committed, ...]
    finished: Finished
    wall_seconds: float
    peak_memory: int | None

    @property
    def token_ids(self) -> list[int]:
        """All tokens of the answer."""
        return [token for event in self.committed for token in event.token_ids]

    @property
    def text(self) -> str:
        """The answer as a person sees it."""
        return "".join(event.text for event in self.committed) + self.finished.text

    @property
    def events(self) -> tuple[Event, ...]:
        """What `Metrics` adds up."""
        return (self.started, *self.committed, self.finished)


def pooled(answers: Sequence[Answer]) -> Metrics:
    """The figures over several answers."""
    metrics = Metrics()
    for answer in answers:
        for event in answer.events:
            metrics.add(event)
    return metrics


@dataclass(frozen=True)
class Measured:
    """`answers[i]` are those of `candidates[i]`, for the same questions in the same order. `partial`: a person
    stopped before all questions were asked, or `failure` ended it. `notes`: what the engine changed of the options, and
    questions that were left out."""

    candidates: list[Candidate]
    answers: list[list[Answer]]
    questions: list[Question]
    partial: bool
    notes: list[str]
    failure: Exception | None = None


@dataclass
class Conversation:
    """A candidate's own conversation about one question."""

    state: DecodingState
    messages: list[Message]


class Guest(Protocol):
    """Another engine that answers in the same rounds, the first turn of every question at temperature 0."""

    def warm_up(self, question: Question) -> None:
        """A few tokens, not counted."""

    def answer(self, question: Question) -> None:
        """Answer and remember how it went; `Stopped` where a person wants to stop."""

    def settle(self) -> None:
        """The round is finished: its answer counts."""


class DoesNotFit(Exception):  # noqa: N818  the question is left out, which is said
    """A turn's prompt leaves no room for an answer in the target's context."""


class Stopped(Exception):  # noqa: N818  it is no error that a person stops
    """A person wanted to stop in the middle of an answer."""


class Asker:
    """Puts questions to one engine, and listens to a person who wants to stop."""

    def __init__(
        self,
        engine: Engine,
        system: str | None = None,
        stop: Stop = lambda: False,
        watch: Callable[[Event], None] | None = None,
    ) -> None:
        """`watch` sees every event, Drafted and Verified too; without it nothing is traced."""
        self.engine, self.system, self.stop, self.watch = engine, system, stop, watch
        self._memory = PeakMemory(engine.describe()["device"])

    def begin(self) -> Conversation:
        """Nothing said yet."""
        messages: list[Message] = [] if self.system is None else [{"role": "system", "content": self.system}]
        return Conversation(self.engine.new_state(), messages)

    def ask(self, question: Question, turn: int, candidate: Candidate, conversation: Conversation) -> Answer:
        """The next turn. `Stopped` where a person wants to; `DoesNotFit`, or EagleChatError where the engine cannot go
        on."""
        conversation.messages.append({"role": "user", "content": question.turns[turn]})
        started: list[Started] = []
        committed: list[Committed] = []
        finished: list[Finished] = []
        self._memory.reset()
        begin = time.perf_counter()
        events = self.engine.stream(
            conversation.messages,
            sampling=candidate.sampling,
            tree=candidate.tree,
            state=conversation.state,
            trace=self.watch is not None,
        )
        for event in events:
            if isinstance(event, Committed):
                committed.append(event)
            elif isinstance(event, Started):
                started.append(event)
            elif isinstance(event, Finished):
                finished.append(event)
            if self.watch is not None:
                self.watch(event)
            if self.stop():
                events.close()
                raise Stopped
        seconds = time.perf_counter() - begin
        if finished[0].reason == "error":
            raise EagleChatError(finished[0].message or "the engine gave up without saying why")
        if not committed:
            raise DoesNotFit(
                f"question {question.id} was left out: the {started[0].prompt_tokens} tokens before its answer "
                f"{turn + 1} leave no room for one"
            )
        memory = self._memory.read()
        answer = Answer(question, turn, started[0], tuple(committed), finished[0], seconds, memory)
        conversation.messages.append({"role": "assistant", "content": answer.text})
        return answer


def measure(
    askers: Sequence[Asker],
    candidates: Sequence[Candidate],
    questions: Sequence[Question],
    report: Report = lambda *_: None,
    guests: Sequence[Guest] = (),
) -> Measured:
    """Warm up, then one round a question; `askers[i]` puts the questions to head i. Stopping, or an error in a later
    round, keeps the finished ones. UserError where no question fits the context."""
    result = Measured(list(candidates), [[] for _ in candidates], [], False, [])
    groups = _by_temperature(candidates)
    try:
        first = _warm_up(askers, candidates, questions, report)
        for guest in guests:
            guest.warm_up(first)
        for number, question in enumerate(questions):
            report(f"question {number + 1} of {len(questions)} ({question.category})", number / len(questions))
            try:
                finished = _round(askers, candidates, groups, question, number, guests)
            except DoesNotFit as error:
                result.notes.append(str(error))
                continue
            for guest in guests:
                guest.settle()
            for index, answers in enumerate(finished):
                result.answers[index].extend(answers)
            result.questions.append(question)
    except Stopped:
        result = dataclasses.replace(result, partial=True)
    except Exception as error:
        if not result.questions:
            raise
        result = dataclasses.replace(result, partial=True, failure=error)
    notes = (note for answers in result.answers for answer in answers for note in answer.started.notes)
    return dataclasses.replace(result, notes=list(dict.fromkeys([*result.notes, *notes])))


def _by_temperature(candidates: Sequence[Candidate]) -> list[list[int]]:
    """Indices of the candidates that are compared with each other, neighbours in time."""
    groups: dict[float, list[int]] = {}
    for index, candidate in enumerate(candidates):
        groups.setdefault(candidate.sampling.temperature, []).append(index)
    return list(groups.values())


def check_length(sampling: SamplingConfig) -> None:
    """UserError where answers would end with their first token: it comes from the prompt, and nothing is decoded."""
    if sampling.max_new_tokens < 2:
        found = sampling.max_new_tokens
        raise UserError(f"answers of at least 2 tokens expected, found a limit of {found}: change --max-new-tokens")


def none_fits(count: int) -> UserError:
    """That of so many questions each was left out."""
    return UserError(f"a question that fits the context expected, found none in {count}: ask shorter ones")


def _warm_up(
    askers: Sequence[Asker], candidates: Sequence[Candidate], questions: Sequence[Question], report: Report
) -> Question:
    """A few tokens from each candidate, not counted: compiled steps, allocated memory, measured costs. The question
    asked: the first that fits."""
    for question in questions:
        try:
            _warm_up_with(askers, candidates, question, report)
        except DoesNotFit:
            continue
        return question
    raise none_fits(len(questions))


def _warm_up_with(askers: Sequence[Asker], candidates: Sequence[Candidate], question: Question, report: Report) -> None:
    for number, candidate in enumerate(candidates):
        asker = askers[candidate.head]
        quiet = Asker(asker.engine, asker.system, asker.stop)
        report("warming up", number / len(candidates))
        short = dataclasses.replace(
            candidate.sampling, max_new_tokens=min(WARM_UP_TOKENS, candidate.sampling.max_new_tokens)
        )
        quiet.ask(question, 0, dataclasses.replace(candidate, sampling=short), quiet.begin())


def _round(
    askers: Sequence[Asker],
    candidates: Sequence[Candidate],
    groups: list[list[int]],
    question: Question,
    number: int,
    guests: Sequence[Guest],
) -> list[list[Answer]]:
    answers: list[list[Answer]] = [[] for _ in candidates]
    conversations = [askers[candidate.head].begin() for candidate in candidates]
    for turn in range(len(question.turns)):
        for place, group in enumerate(groups):
            invited = range(len(candidates), len(candidates) + len(guests)) if place == turn == 0 else ()
            for index in in_order([*group, *invited], number + turn):
                if index >= len(candidates):
                    guests[index - len(candidates)].answer(question)
                    continue
                candidate = candidates[index]
                answer = askers[candidate.head].ask(question, turn, candidate, conversations[index])
                answers[index].append(answer)
    return answers
