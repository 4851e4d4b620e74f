"""A server under load: throughput and latency by how many ask at once, and where drafts stop paying.

At concurrency n, n askers each put one question after another until all questions are answered. Two servers, one that
drafts and one that does not, are asked in turn at each concurrency, so that slow moments of the machine hit both.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from eagle_chat.bench.prompts import Question
from eagle_chat.core.chat import Message
from eagle_chat.core.config import SamplingConfig
from eagle_chat.core.errors import EagleChatError
from eagle_chat.core.progress import Report
from eagle_chat.serving.client import Client, Model
from eagle_chat.serving.counters import Counters
from eagle_chat.serving.remote import request_body

WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Timed:
    """One answer. Seconds from asking: to the first piece, to the end. `tokens`: as the server counts."""

    tokens: int
    first: float
    end: float

    @property
    def per_token(self) -> float | None:
        """Seconds a token after the first piece; None for an answer of one token."""
        return (self.end - self.first) / (self.tokens - 1) if self.tokens > 1 else None


@dataclass(frozen=True)
class Level:
    """What one server did at one concurrency. `seconds`: from the first question to the last answer. `failures`: what
    the server said in place of an answer. `counters`: of its drafting meanwhile, None where it tells none."""

    concurrency: int
    answers: list[Timed]
    seconds: float
    counters: Counters | None = None
    failures: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """JSON-ready values; None for what cannot be told."""
        tokens = sum(answer.tokens for answer in self.answers)
        paces = [pace for answer in self.answers if (pace := answer.per_token) is not None]
        firsts = [answer.first for answer in self.answers]
        counted = self.counters if self.counters is not None and self.counters.drafts else None
        return {
            "concurrency": self.concurrency,
            "answers": len(self.answers),
            "failures": len(self.failures),
            "tokens": tokens,
            "seconds": self.seconds,
            "tokens_per_second": tokens / self.seconds if tokens else None,
            "first_token_seconds": quantiles(firsts),
            "token_seconds": quantiles(paces),
            "tau": 1.0 + counted.accepted_tokens / counted.drafts if counted else None,
            "accepted_by_position": [counted.by_position[at] for at in sorted(counted.by_position)] if counted else [],
            "drafts": counted.drafts if counted else None,
        }


def quantiles(values: Sequence[float]) -> dict[str, float] | None:
    """Median and 95th percentile (nearest rank)."""
    if not values:
        return None
    ordered = sorted(values)
    return {"p50": statistics.median(ordered), "p95": ordered[max(-(-len(ordered) * 95 // 100) - 1, 0)]}


@dataclass(frozen=True)
class Server:
    """A server and the model it is asked for."""

    client: Client
    model: Model


async def measure(
    servers: Sequence[Server],
    questions: Sequence[Question],
    levels: Sequence[int],
    sampling: SamplingConfig,
    system: str | None,
    report: Report,
    stopped: Callable[[], bool],
) -> tuple[list[list[Level]], bool]:
    """For each server its levels, and whether a person stopped it before all were measured.

    EagleChatError where a server gives no answer at all.
    """
    prompts = [_messages(question, system) for question in questions]
    for server in servers:
        short = SamplingConfig(**{**vars(sampling), "max_new_tokens": min(WARM_UP_TOKENS, sampling.max_new_tokens)})
        await _ask(server, prompts[0], short)
    measured: list[list[Level]] = [[] for _ in servers]
    for number, concurrency in enumerate(levels):
        row = []
        for index, server in enumerate(servers):
            done = (number + index / len(servers)) / len(levels)
            report(f"{concurrency} at once, {server.client.url}", done)
            row.append(await _level(server, prompts, concurrency, sampling, stopped))
        if stopped():
            return measured, True
        for of_server, level in zip(measured, row, strict=True):
            of_server.append(level)
    return measured, False


def _messages(question: Question, system: str | None) -> list[Message]:
    first: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": question.turns[0]}]


async def _level(
    server: Server,
    prompts: Sequence[list[Message]],
    concurrency: int,
    sampling: SamplingConfig,
    stopped: Callable[[], bool],
) -> Level:
    left = iter(prompts)
    answers: list[Timed] = []
    failures: list[str] = []

    async def asker() -> None:
        for prompt in left:  # shared: each takes the next one
            if stopped():
                return
            try:
                answers.append(await _ask(server, prompt, sampling))
            except EagleChatError as error:
                failures.append(str(error))

    before = await server.client.counters()
    start = time.perf_counter()
    await asyncio.gather(*(asker() for _ in range(concurrency)))
    seconds = time.perf_counter() - start
    after = await server.client.counters() if before is not None else None
    if not answers and failures:
        raise EagleChatError(failures[0])
    counters = after.since(before) if after is not None and before is not None else None
    return Level(concurrency, answers, seconds, counters, failures)


async def _ask(server: Server, prompt: list[Message], sampling: SamplingConfig) -> Timed:
    start = time.perf_counter()
    first = None
    pieces = counted = 0
    async with aclosing(server.client.answer(request_body(server.model, prompt, sampling))) as answer:
        async for piece in answer:
            if piece.text or piece.token_ids:
                first = first or time.perf_counter() - start
                pieces += len(piece.token_ids) if piece.token_ids else 1
            if piece.usage:
                counted = piece.usage.get("completion_tokens") or counted
    end = time.perf_counter() - start
    return Timed(counted or pieces, end if first is None else first, end)


def document(servers: Sequence[Server], measured: Sequence[Sequence[Level]], **about: Any) -> dict[str, Any]:
    """What was measured as JSON-ready values. The first server drafts; a second one is what it is held against."""
    names = ("drafting", "plain")
    runs: list[dict[str, Any]] = []
    for name, server, levels in zip(names, servers, measured, strict=False):
        failures = sorted({failure for level in levels for failure in level.failures})
        figures = [level.figures() for level in levels]
        runs.append(
            {"server": name, "url": server.client.url, "model": server.model.id, "levels": figures, "said": failures}
        )
    if len(runs) == 2:
        for mine, base in zip(runs[0]["levels"], runs[1]["levels"], strict=True):
            both = mine["tokens_per_second"] and base["tokens_per_second"]
            mine["speedup"] = mine["tokens_per_second"] / base["tokens_per_second"] if both else None
    return {**about, "runs": runs, "stops_paying_at": stops_paying(runs)}


def stops_paying(runs: Sequence[dict[str, Any]]) -> int | None:
    """The first concurrency from which on drafting gives no more tokens a second than plain decoding; None where it
    always gives more, or nothing is there to hold it against."""
    if len(runs) != 2:
        return None
    pays = sorted((level["concurrency"], (level.get("speedup") or 0.0) > 1.0) for level in runs[0]["levels"])
    last = next((at for at in range(len(pays) - 1, -1, -1) if pays[at][1]), -1)
    return pays[last + 1][0] if last + 1 < len(pays) else None
