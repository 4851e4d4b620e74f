"""A question and its answer in a session, as pictures for the page. Knows nothing of Gradio."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from eagle_chat.core.conversation import Conversation, Turn
from eagle_chat.core.errors import EagleChatError
from eagle_chat.core.events import Event, Finished
from eagle_chat.core.metrics import Metrics
from eagle_chat.webui.answer_html import answer_html, figures_html, plain_html
from eagle_chat.webui.controls import Controls
from eagle_chat.webui.decoding import answer_events
from eagle_chat.webui.live import LiveRun
from eagle_chat.webui.measured import Measured
from eagle_chat.webui.service import EngineService, Job, Waiting
from eagle_chat.webui.session import ANSWER, Session


@dataclass(frozen=True)
class Picture:
    """One state of the page. `explorer` None: as it was. `question`: what goes back into the input, None: nothing.
    `text`: the answer so far. `rest`: nothing came of it, so the explorer goes back to what was there."""

    transcript: dict[str, Any]
    explorer: dict[str, Any] | None
    notice: str
    running: bool
    question: str | None = None
    text: str = ""
    metrics: Metrics | None = None
    error: EagleChatError | None = None
    rest: bool = False


def transcript(session: Session, current: tuple[str, str, str] | None = None) -> dict[str, Any]:
    """The conversation as HTML by turn: question, answer, figures. `current`: the turn in the making, the same three
    (the last one as HTML)."""
    turns = [[plain_html(turn.question), answer_html(turn.answer), turn.figures] for turn in session.before]
    if current is not None:
        turns.append([plain_html(current[0]), answer_html(current[1]), current[2]])
    return {"turns": turns, "live": current is not None}


def waiting_notice(waiting: Waiting) -> str:
    """Why there is no answer yet."""
    if waiting.loading:
        return "The model is still being loaded; your question is answered as soon as it is there."
    if waiting.ahead:
        people = "1 question is" if waiting.ahead == 1 else f"{waiting.ahead} questions are"
        return f"In the queue: {people} in front of yours."
    return "Reading the conversation …"


def error_notice(error: EagleChatError) -> str:
    """An error as HTML."""
    return f'<span class="ec-error">{html.escape(str(error))}</span>'


def answer(service: EngineService, session: Session, controls: Controls) -> Iterator[Picture]:
    """Answer the session's pending question. What was said until the consumer leaves, or someone stops, is kept."""
    question = session.pending
    if question is None:
        return
    try:
        conversation = Conversation(controls.system_text(), session.before)
        job = _submit(service, session, controls, conversation, question)
    except EagleChatError as error:
        back = None if session.replacing else question
        session.give_up()
        yield Picture(transcript(session), None, error_notice(error), False, back, error=error)
        return
    session.begin(job, ANSWER)
    session.pending, session.opened, chat = None, None, session.chats
    if session.unwanted:
        job.stop()
    making = _Making(question, lambda: service.measured(controls.head))
    failure: EagleChatError | None = None
    try:
        for batch in job.batches():
            if isinstance(batch, Waiting):
                notice = waiting_notice(batch) if making.metrics.started is None else ""
            else:
                notice = ""
                making.take(batch)
            if session.chats != chat:
                break
            shown = making.transcript(session), making.live.value()
            yield Picture(*shown, notice, True, text=making.metrics.text, metrics=making.metrics)
    except EagleChatError as error:
        failure = error
    finally:
        left = session.chats != chat  # a new one was begun: this answer is nobody's
        kept = not left and making.keep(session)
        back = None if left or kept or session.replacing else question
        if not left:
            session.give_up()
        if not kept and making.failure is not None:
            failure = failure or EagleChatError(making.failure)
        notice = error_notice(failure) if failure else "" if kept or left else "Stopped before the answer began."
        explorer = making.live.ended(session.pages()) if kept else None
        text, metrics = making.metrics.text, making.metrics
        last = Picture(transcript(session), explorer, notice, False, back, text, metrics, failure, rest=not kept)
        session.job = None  # from here on it may be the next one's
    yield last


def _submit(
    service: EngineService, session: Session, controls: Controls, conversation: Conversation, question: str
) -> Job:
    tree, sampling = controls.tree(), controls.sampling()
    messages = conversation.messages(question)

    def work(job: Job) -> Iterator[Event]:
        engine = service.engine(controls.head)
        state = service.state(session.key, engine)
        yield from answer_events(engine, messages, tree, sampling, lambda: job.stopping, state)
        if not job.stopping:
            service.measurements.learn(engine, state)

    return service.submit(session.key, work)


class _Making:
    """An answer in the making."""

    def __init__(self, question: str, measured: Callable[[], Measured]) -> None:
        self._question = question
        self.metrics, self.live = Metrics(), LiveRun(question, measured)

    def take(self, events: list[Event]) -> None:
        for event in events:
            self.metrics.add(event)
            self.live.take(event)

    @property
    def failure(self) -> str | None:
        """What ended the answer, where a server did."""
        finished = self.metrics.finished
        return finished.message if finished is not None and finished.reason == "error" else None

    def transcript(self, session: Session) -> dict[str, Any]:
        figures = figures_html(self.metrics) if self.metrics.cycles else ""
        return transcript(session, (self._question, self.metrics.text, figures))

    def keep(self, session: Session) -> bool:
        """Make it a turn of the conversation; whether there was anything to keep."""
        if not self.metrics.token_ids:
            return False
        if self.metrics.finished is None:
            self.take([Finished("cancelled", "", self.metrics.cycles, len(self.metrics.token_ids))])
        metrics = self.metrics
        started = metrics.started
        turn = Turn(
            self._question,
            answer=metrics.text,
            token_ids=list(metrics.token_ids),
            finish_reason=metrics.finish_reason,
            target=started.target if started else "",
            seed=int(started.sampling.get("seed", 0)) if started else 0,
            figures=figures_html(metrics),
            events=list(self.live.events),
        )
        session.keep(turn)
        return True
