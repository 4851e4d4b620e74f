"""Training text: written by the target itself, answered anew by it, or taken from files.

A batch of conversations is a function of the settings and the batch's number, apart from duplicates of earlier
batches. It becomes one shard, so a killed run goes on with the next batch and ends with the same rows.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle_chat.core.chat import Chat, Message
from eagle_chat.core.errors import EagleChatError, UserError
from eagle_chat.core.files import sole_writer
from eagle_chat.core.target import Target
from eagle_chat.training import conversations, filters
from eagle_chat.training.config import CorpusConfig
from eagle_chat.training.conversations import Conversation, Left
from eagle_chat.training.decode import Continuation, Request, continue_all
from eagle_chat.training.questions import opening, user_header
from eagle_chat.training.shards import Shards
from eagle_chat.training.summary import listed, refusals
from eagle_chat.training.timing import duration

DEFAULT_ANSWERS = 1000
"""Answers where neither a number nor a source is given."""
BARREN_BATCHES = 20
"""After so many batches in a row without a usable question the target is given up."""

Report = Callable[[str, float], None]


@dataclass(frozen=True)
class Row:
    """One conversation of the corpus with how it was made."""

    conversation: Conversation
    tokens: int
    kind: str | None = None
    temperature: float | None = None

    def to_json(self) -> dict[str, Any]:
        """As it stands in a shard; `conversations.from_row` reads it."""
        made = {"kind": self.kind, "temperature": self.temperature}
        known = {name: value for name, value in made.items() if value is not None}
        ended = self.conversation.ended
        return {"messages": list(self.conversation.messages), "ended": ended, "tokens": self.tokens, **known}


@dataclass
class Yield:
    """What one batch gave: rows kept, and how many were refused, or had lost their ends, for which reason."""

    rows: list[Row] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    shortened: Counter[str] = field(default_factory=Counter)
    asked: int = 0


class CorpusMaker:
    """Makes batch after batch; `seen` and `exclusion` keep known questions out."""

    def __init__(self, config: CorpusConfig, target: Target, chat: Chat) -> None:
        self.config, self.target, self.chat = config, target, chat
        self.exclusion = filters.read_exclusion(config.exclude, config.exclude_words)
        self.seen = filters.Seen()

    def batches(self, first: int) -> Iterator[Yield]:
        """Batch `first` and those after it; endless where the target writes the questions."""
        size = self.config.batch
        if not self.config.source:
            for number in itertools.count(first):
                yield self._written(range(number * size, (number + 1) * size))
            return
        left = Left()
        source = conversations.read(self.config.source, self.config.split, left)
        collections.deque(itertools.islice(source, first * size), maxlen=0)  # what earlier batches took
        for number in itertools.count(first):
            left.refused, left.shortened = Counter(), Counter()
            batch = list(itertools.islice(source, size))
            if not batch and not left.refused:
                return
            yield self._taken(batch, number * size, left)

    def _written(self, numbers: range) -> Yield:
        """Questions and answers both by the target."""
        result = Yield(asked=len(numbers))
        openings = [opening(number) for number in numbers]
        header = user_header(self.chat, self.config.system)
        num_header = len(self.chat.encode_text(header))
        prompts = [tuple(self.chat.encode_text(header + start.words)) for start in openings]
        temperature, min_p = self.config.question_temperature, self.config.question_min_p
        requests = [
            Request(prompt, f"question {number}", temperature, min_p)
            for number, prompt in zip(numbers, prompts, strict=True)
        ]
        texts = self._continue(requests, self.config.max_question_tokens)
        kept: list[tuple[int, str, str]] = []
        new = filters.Seen()
        for number, start, prompt, text in zip(numbers, openings, prompts, texts, strict=True):
            question = self.chat.decode([*prompt[num_header:], *text.tokens]).strip()
            reason = self._question_fault(question, text, new)
            if reason is not None:
                result.refused[reason] += 1
            else:
                kept.append((number, start.kind, question))
        asked = [Conversation((Message(role="user", content=question),)) for _, _, question in kept]
        self._answer(asked, [number for number, _, _ in kept], result, [kind for _, kind, _ in kept])
        return result

    def _question_fault(self, question: str, text: Continuation, new: filters.Seen) -> str | None:
        if not text.ended:
            return "question without an end"
        if len(question.split()) < self.config.min_question_words:
            return "question too short"
        if filters.loops(text.tokens):
            return "question loops"
        return "excluded question" if self.exclusion.hits(question) else self._known(question, new)

    def _known(self, question: str, new: filters.Seen) -> str | None:
        """Only what is kept counts as seen for later batches: a resumed run knows nothing else."""
        return None if question not in self.seen and new.add(question) else "duplicate question"

    def _taken(self, batch: list[Conversation], first: int, left: Left) -> Yield:
        """Conversations of files, with their own answers or the target's. `left`: what reading these left out."""
        result = Yield(refused=left.refused, shortened=left.shortened, asked=len(batch) + left.refused.total())
        kept: list[tuple[int, Conversation]] = []
        new = filters.Seen()
        for number, conversation in enumerate(batch, first):
            excluded = self.exclusion.refuses(conversation)
            reason = "excluded question" if excluded else self._known(conversation.question, new)
            if reason is not None:
                result.refused[reason] += 1
            else:
                kept.append((number, conversation))
        if self.config.regenerate:
            self._answer([conversation for _, conversation in kept], [number for number, _ in kept], result)
        else:
            for _, conversation in kept:
                self._keep_if_good(conversation, result)
        return result

    def _answer(
        self, asked: Sequence[Conversation], numbers: Sequence[int], result: Yield, kinds: Sequence[str] | None = None
    ) -> None:
        """Let the target answer the questions of every conversation, turn by turn, all conversations at once."""
        questions = [[turn for turn in one.messages if turn["role"] == "user"] for one in asked]
        systems = [[turn for turn in one.messages if turn["role"] == "system"] for one in asked]
        if self.config.system is not None:
            systems = [[Message(role="system", content=self.config.system)] for _ in asked]
        done: list[list[Message]] = [list(system) for system in systems]
        open_rows, ended = list(range(len(asked))), [True] * len(asked)
        temperatures = [self.config.temperatures[number % len(self.config.temperatures)] for number in numbers]
        for turn in range(max((len(turns) for turns in questions), default=0)):
            rows = [row for row in open_rows if turn < len(questions[row])]
            prompts = [self.chat.encode([*done[row], questions[row][turn]]) for row in rows]
            room = self.target.context_limit - self.config.max_new_tokens
            fitting = [(row, prompt) for row, prompt in zip(rows, prompts, strict=True) if len(prompt) <= room]
            requests = [
                Request(tuple(prompt), f"answer {numbers[row]} {turn}", temperatures[row]) for row, prompt in fitting
            ]
            for (row, _), text in zip(fitting, self._continue(requests, self.config.max_new_tokens), strict=True):
                answer = Message(role="assistant", content=self.chat.decode(text.tokens))
                done[row] += [questions[row][turn], answer]
                ended[row] = text.ended
            # After an answer that was cut off, or a prompt without room, the conversation ends.
            open_rows = [row for row, _ in fitting if ended[row]]
        for row, messages in enumerate(done):
            if len(messages) == len(systems[row]):
                result.refused["no room for an answer"] += 1
                continue
            kind = kinds[row] if kinds is not None else None
            self._keep_if_good(Conversation(tuple(messages), ended[row]), result, kind, temperatures[row])

    def _keep_if_good(
        self, conversation: Conversation, result: Yield, kind: str | None = None, temperature: float | None = None
    ) -> None:
        answers = [turn["content"] for turn in conversation.messages if turn["role"] == "assistant"]
        ids = [self.chat.tokenizer(text, add_special_tokens=False)["input_ids"] for text in answers]
        if any(len(tokens) < self.config.min_answer_tokens for tokens in ids):
            result.refused["answer too short"] += 1
        elif not self.config.keep_loops and any(filters.loops(tokens) for tokens in ids):
            result.refused["answer loops"] += 1
        else:
            self.seen.add(conversation.question)
            result.rows.append(Row(conversation, sum(map(len, ids)), kind, temperature))

    def _continue(self, requests: Sequence[Request], max_new_tokens: int) -> list[Continuation]:
        return continue_all(self.target, requests, self.chat.stop_ids, max_new_tokens, self.config.seed)


def make_corpus(config: CorpusConfig, target: Target, chat: Chat, report: Report) -> int:
    """Write the corpus into `config.out`, going on where an earlier start ended; the number of conversations there.

    UserError where the folder was begun with other settings, or nothing of the source can be kept; EagleChatError where
    the target writes nothing usable.
    """
    shards = Shards(Path(config.out).expanduser())
    with sole_writer(shards.folder):
        have = _make_corpus(config, shards, target, chat, report)
    if have == 0:
        notes = shards.notes()
        raise UserError(
            f"conversations to keep expected, found none among {sum(note['asked'] for note in notes):,} (refused: "
            f"{listed(refusals(notes))}): change the source or what is refused"
        )
    return have


def _make_corpus(config: CorpusConfig, shards: Shards, target: Target, chat: Chat, report: Report) -> int:
    shards.open(_settings(config))
    questions = [_question_of(row) for row in shards.rows()]
    wanted = config.answers or (0 if config.source else DEFAULT_ANSWERS)
    if wanted and len(questions) >= wanted:
        return len(questions)
    if shards.count():
        kept, note = sum(1 for _ in shards.rows_of(shards.count() - 1)), shards.notes()[-1]
        if kept + sum(note["refused"].values()) < note["asked"]:
            # Fewer were wanted before, and the rest of that batch was left out: it is made again.
            shards.drop_last()
            questions = questions[: len(questions) - kept]
    maker = CorpusMaker(config, target, chat)
    for question in questions:
        maker.seen.add(question)
    have, number, barren = len(questions), shards.count(), 0
    progress = _Progress(report, wanted, have)
    started = time.perf_counter()
    for batch in maker.batches(number):
        rows = batch.rows[: wanted - have] if wanted else batch.rows
        note = {
            "asked": batch.asked,
            "refused": dict(batch.refused),
            "shortened": dict(batch.shortened),
            "tokens": sum(row.tokens for row in rows),
            "seconds": round(time.perf_counter() - started, 3),
        }
        shards.write(number, (row.to_json() for row in rows), note)
        number, have, started = number + 1, have + len(rows), time.perf_counter()
        progress.add(len(rows), sum(row.tokens for row in rows))
        barren = 0 if rows else barren + 1
        if wanted and have >= wanted:
            break
        if barren >= BARREN_BATCHES and not config.source:
            raise EagleChatError(
                f"usable questions expected from {config.base}, found none in {BARREN_BATCHES} batches "
                f"(refused: {listed(refusals(shards.notes()[-BARREN_BATCHES:]))}): give a --source with questions"
            )
    return have


def _settings(config: CorpusConfig) -> dict[str, Any]:
    """What makes two corpora different; where they run and how many rows are wanted does not."""
    free = ("out", "device", "answers")
    return {name: value for name, value in dataclasses.asdict(config).items() if name not in free}


def _question_of(row: dict[str, Any]) -> str:
    return str(next(turn["content"] for turn in row["messages"] if turn["role"] == "user"))


class _Progress:
    """Words for the progress line: how many, how fast, how long still."""

    def __init__(self, report: Report, wanted: int, have: int) -> None:
        self._report, self._wanted, self._have = report, wanted, have
        self._start, self._new, self._tokens = time.perf_counter(), 0, 0

    def add(self, rows: int, tokens: int) -> None:
        self._have, self._new, self._tokens = self._have + rows, self._new + rows, self._tokens + tokens
        seconds = time.perf_counter() - self._start
        of_all = f" of {self._wanted:,}" if self._wanted else ""
        words = f"{self._have:,}{of_all} conversations, {self._tokens / seconds:.0f} answer tokens/s"
        if self._wanted:
            left = (self._wanted - self._have) * seconds / self._new if self._new else float("inf")
            words += f", {duration(left)} left"
        self._report(words, self._have / self._wanted if self._wanted else 0.0)
