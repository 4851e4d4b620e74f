"""One question answered in two ways with the same seed, one after the other, and what came of it."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from eagle_chat.core.config import PolicyName
from eagle_chat.core.conversation import Conversation
from eagle_chat.core.errors import EagleChatError, UserError
from eagle_chat.core.events import Event
from eagle_chat.core.metrics import Metrics, same_text
from eagle_chat.core.recording import Run
from eagle_chat.webui import limits
from eagle_chat.webui.answer_html import answer_html, figures_html
from eagle_chat.webui.chatting import error_notice, waiting_notice
from eagle_chat.webui.controls import Controls
from eagle_chat.webui.decoding import answer_events
from eagle_chat.webui.live import shown
from eagle_chat.webui.service import EngineService, Job, Waiting
from eagle_chat.webui.session import COMPARISON, Session, pack

WAYS: dict[PolicyName, str] = {
    "none": "plain decoding",
    "chain": "chain",
    "static": "static tree",
    "dynamic": "dynamic tree",
}
EVEN = 1.02
"""A speed-up below this is noise."""


@dataclass(frozen=True)
class Comparison:
    """Two lanes, each HTML and whether it is at work, and the verdict as HTML; None: as they were. `explorer`: None as
    well; empty where there is nothing to see."""

    lanes: list[dict[str, Any]] | None
    verdict: str | None
    notice: str = ""
    running: bool = True
    metrics: tuple[Metrics, Metrics] | None = None
    explorer: dict[str, Any] | None = None


def compare(
    service: EngineService, session: Session, question: str | None, ways: tuple[str, str], controls: Controls
) -> Iterator[Comparison]:
    """Answer `question` in both ways; the conversation is left alone."""
    runs, recorded = (Metrics(), Metrics()), (Run(question), Run(question))
    names = [WAYS.get(way, way) for way in ways]  # type: ignore[call-overload]  # unknown ones are refused below
    try:
        session.check_free()
        job = _submit(service, session, question, ways, controls)
    except EagleChatError as error:
        yield Comparison(None, None, error_notice(error), running=False)
        return
    session.begin(job, COMPARISON)
    failure = ""
    at = 0
    try:
        for batch in job.batches():
            notice = ""
            if isinstance(batch, Waiting):
                notice = waiting_notice(batch) if runs[0].started is None else ""
            else:
                for lane, event in batch:
                    at = lane
                    runs[lane].add(event)
                    recorded[lane].events.append(event)
            yield Comparison(_lanes(names, runs, at), "", notice, explorer={})
    except EagleChatError as error:
        failure = error_notice(error)
    finally:
        session.job = None
    done = runs[1].finished is not None and not failure
    lanes = _lanes(names, runs, None)
    begun = [run for run in recorded if run.complete]
    session.compared = pack(begun) if begun else None
    if not done:
        there = shown(begun, service.measured(controls.head)) if begun else {}
        yield Comparison(lanes, "", failure or "Stopped before both answers were there.", False, explorer=there)
        return
    first = next((lane for lane, way in enumerate(ways) if way != "none"), 0)  # plain decoding has no trees to see
    explorer = shown(list(recorded), service.measured(controls.head), tab="compare", run=first)
    yield Comparison(lanes, verdict_html(runs[0], runs[1], names), "", False, runs, explorer)


def _submit(
    service: EngineService, session: Session, question: str | None, ways: tuple[str, str], controls: Controls
) -> Job:
    text = limits.check_text(question, limits.MESSAGE, "a question")
    if not text.strip():
        raise UserError("a question expected, found none: write one")
    for way in ways:
        if way not in get_args(PolicyName):
            raise UserError(f"one of {', '.join(WAYS)} expected, found {way!r}: choose one of these")
    trees = [controls.tree(way) for way in ways]  # type: ignore[arg-type]  # checked just now
    sampling = controls.sampling()
    messages = Conversation(controls.system_text()).messages(text)

    def work(job: Job) -> Iterator[tuple[int, Event]]:
        engine = service.engine(controls.head)
        for lane, tree in enumerate(trees):
            if job.stopping:
                return
            events = []
            # Each from nothing, so that the times can be compared.
            for event in answer_events(engine, messages, tree, sampling, lambda: job.stopping):
                events.append(event)
                yield lane, event
            if tree.policy == "none":
                service.measurements.note(engine, events)

    return service.submit(session.key, work)


def _lanes(names: list[str], runs: tuple[Metrics, Metrics], at: int | None) -> list[dict[str, Any]]:
    return [
        {
            "name": html.escape(name),
            "answer": answer_html(run.text),
            "figures": figures_html(run) if run.token_ids else "",
            "live": lane == at,
        }
        for lane, (name, run) in enumerate(zip(names, runs, strict=True))
    ]


def verdict_html(left: Metrics, right: Metrics, names: list[str]) -> str:
    """Same text or not, passes and speed, in sentences."""
    same, sentence = same_text(left, right)
    free = not (left.keeps_text and right.keeps_text)  # then other words are no fault
    look, sign = ("ec-good", "✓") if same else ("", "≠") if free else ("ec-bad", "✗")
    lines = [f'<p class="{look}">{sign} {html.escape(sentence)}</p>']
    whole = not (left.was_cut or right.was_cut)  # lengths that differ by chance say nothing of passes and speed
    if whole and left.cycles and right.cycles and left.tokens_per_second and right.tokens_per_second:
        passes = f"{names[0]}: {left.cycles} passes of the target; {names[1]}: {right.cycles}."
        lines.append(f"<p>{html.escape(passes)} {html.escape(_speed(left, right, names))}</p>")
    return "".join(lines)


def _speed(left: Metrics, right: Metrics, names: list[str]) -> str:
    """How fast one was beside the other; a speed-up is over plain decoding, on whichever side that is."""
    if left.is_plain == right.is_plain:
        ratio = (right.tokens_per_second or 0.0) / (left.tokens_per_second or 1.0)
        return f"{names[1]} went ×{ratio:.2f} as fast as {names[0]}, measured on this machine in these two runs."
    plain, draft = (left, right) if left.is_plain else (right, left)
    speedup = (draft.tokens_per_second or 0.0) / (plain.tokens_per_second or 1.0)
    said = f"Speed-up by drafting ×{speedup:.2f}"
    if speedup >= EVEN:
        return f"{said}, measured on this machine in these two runs."
    more = "more than it saves" if speedup < 1 / EVEN else "what it saves"
    return f"{said}: drafting costs this machine {more}. A pass over a tree costs more here than a pass over one token."
