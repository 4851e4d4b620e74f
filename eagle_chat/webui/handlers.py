"""What happens when somebody presses something: from the page's values to those it shows next.

Each handler gets the request, whose session hash tells people apart, and never raises: what went wrong becomes a line
on the page.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec

import gradio as gr

from eagle_chat.core.config import AUTO_NODES
from eagle_chat.core.errors import EagleChatError
from eagle_chat.webui import comparing, lossless, recordings
from eagle_chat.webui.chatting import Picture, answer, error_notice, transcript
from eagle_chat.webui.controls import Controls
from eagle_chat.webui.file_handlers import FileHandlers
from eagle_chat.webui.live import conversation, shown
from eagle_chat.webui.parts import status_html
from eagle_chat.webui.server_html import INTRODUCTION, server_html
from eagle_chat.webui.service import EngineService, Status
from eagle_chat.webui.session import BusyError, Remark, Session, Sessions

P = ParamSpec("P")
LARGEST_SEED = 2**31
STOPPING = Remark("Stopping after this cycle …", math.inf, passing=True)
READABLE = 6.0
"""Seconds for which an error stays beside an answer being made."""
LATE = 0.3
"""Seconds after an answer in which a reply that held only during it may still come, to be wiped away."""


def key_of(request: gr.Request) -> str:
    """Who is asking."""
    return str(request.session_hash)


def status_text(status: Status, service: EngineService, base: str) -> str:
    """The state of the engine in a sentence."""
    if status.phase == "loading":
        return f"loading {base} … {status.seconds:.0f} s"
    if status.phase == "failed":
        return f"no model: {status.message}"
    about = service.loaded.describe() if service.loaded else {}
    head = f"head {about.get('head')}" if about.get("head") else "no draft head"
    more = (about.get("device"),) if service.is_server else (head, about.get("device"), about.get("dtype"))
    parts = [", ".join(str(part) for part in (about.get("target"), *more))]
    if status.jobs:
        waiting = status.jobs - 1
        parts.append("answering" + (f", {waiting} waiting" if waiting else ""))
    else:
        parts.append("ready")
    return " · ".join(parts)


def _last_word(stream: Callable[P, Iterator[tuple[Any, ...]]]) -> Callable[P, Iterator[tuple[Any, ...]]]:
    """End a stream of outputs with one that changes nothing. Gradio sends the last one again when the stream has ended,
    which would undo what was pressed since it was seen."""

    @functools.wraps(stream)
    def ended(*arguments: P.args, **options: P.kwargs) -> Iterator[tuple[Any, ...]]:
        outputs: tuple[Any, ...] = ()
        for outputs in stream(*arguments, **options):
            yield outputs
        yield (gr.skip(),) * len(outputs)

    return ended


class Handlers:
    """The page's actions on one engine and all sessions."""

    def __init__(self, service: EngineService, sessions: Sessions, base: str, tree_given: bool) -> None:
        self._service, self._sessions = service, sessions
        self._base, self._tree_given = base, tree_given
        self.files = FileHandlers(service, self.session)

    def session(self, request: gr.Request) -> Session:
        """The session of a request. UserError where there are too many."""
        return self._sessions.get(key_of(request))

    def status(self, request: gr.Request) -> tuple[Any, Any, Any, Any]:
        """Status line; and once, when the engine is there, the tree that suits its head."""
        status = self._service.status
        line = status_html(status.phase, status_text(status, self._service, self._base))
        nothing = (gr.skip(), gr.skip(), gr.skip())
        try:
            session = self.session(request)
        except EagleChatError as error:
            return (error_notice(error), *nothing)
        engine = self._service.loaded
        if session.greeted or engine is None or self._tree_given:
            return (line, *nothing)
        session.greeted = True
        tree = engine.defaults
        # A page to look at trees with does not begin where there may be none: that is for whoever sets it to 0.
        nodes = gr.skip() if tree.total_tokens == AUTO_NODES else tree.total_tokens
        return (line, tree.depth, tree.top_k, nodes)

    def take(self, question: str, request: gr.Request) -> tuple[Any, ...]:
        """Accept a question: input, transcript, notice, send and stop buttons."""
        same = (gr.skip(), gr.skip())
        try:
            session = self.session(request)
        except EagleChatError as error:
            return *same, error_notice(error), *same
        session.settle()
        if session.busy and not (question or "").strip():
            return *same, gr.skip(), *same  # the same key pressed twice
        try:
            session.take(question)
        except EagleChatError as error:
            return *same, _said(session, error), *same
        return "", transcript(session, (session.pending or "", "", "")), "", _button(False), _button(True)

    def take_example(self, question: str, request: gr.Request) -> tuple[Any, ...]:
        """The same with a question of the page's own: what is being written stays."""
        _, *rest = self.take(question, request)
        return gr.skip(), *rest

    def take_again(self, seed: float, temperature: float, request: gr.Request) -> tuple[Any, ...]:
        """Ask the last question again, above temperature 0 with the next seed: input, transcript, notice, send and stop
        buttons, seed."""
        same = (gr.skip(), gr.skip())
        try:
            session = self.session(request)
        except EagleChatError as error:
            return *same, error_notice(error), *same, gr.skip()
        session.settle()
        try:
            question = session.take_again()
        except EagleChatError as error:
            return *same, _said(session, error), *same, gr.skip()
        again = (int(seed or 0) + 1) % LARGEST_SEED if temperature else gr.skip()
        if not temperature:
            session.remark = Remark("At temperature 0 the same settings give the same answer.", math.inf)
        shown = transcript(session, (question, "", ""))
        return gr.skip(), shown, session.remark.now(), _button(False), _button(True), again

    @_last_word
    def answer(self, request: gr.Request, *values: Any) -> Iterator[tuple[Any, ...]]:
        """Answer the pending question: input, transcript, explorer, notice, send and stop buttons."""
        try:
            session = self.session(request)
        except EagleChatError as error:
            yield gr.skip(), gr.skip(), gr.skip(), error_notice(error), gr.skip(), gr.skip()
            return
        if session.pending is None:  # it was refused, which has been said
            yield (gr.skip(),) * 6
            return
        was_running: bool | None = None
        notice = said = ""
        passed = False
        for picture in answer(self._service, session, Controls(*values)):
            inspector = server_html(picture.metrics) if self._service.is_server else picture.explorer
            if picture.rest:
                inspector = self._at_rest(session)
            passed = passed or (not picture.running and session.forget_passing())
            stopping = session.remark.now() if session.remark is STOPPING else ""
            notice, said = picture.notice, stopping or picture.notice or session.remark.now()
            yield _chat_outputs(picture, inspector, picture.running != was_running, said)
            was_running = picture.running
        if was_running is None:  # another request has it
            yield (gr.skip(),) * 6
            return
        time.sleep(LATE)
        if session.busy:
            return
        passed = session.forget_passing() or passed
        late = session.remark.now() or notice
        if passed or late != said:  # the same again could wipe away what is being said just now
            yield gr.skip(), gr.skip(), gr.skip(), late, gr.skip(), gr.skip()

    def _at_rest(self, session: Session) -> Any:
        """What the inspector shows while nothing is being made: the conversation, or what there is before one."""
        if self._service.is_server:
            return gr.skip() if session.conversation.turns else INTRODUCTION
        if session.opened is not None:
            return shown(session.runs())
        return conversation(session.pages(), self._service.measured()) or shown(recordings.first())

    def stop(self, request: gr.Request) -> str:
        """End what is being made after its cycle: notice."""
        try:
            session = self.session(request)
        except EagleChatError as error:
            return error_notice(error)
        session.stop()
        if session.busy:
            session.remark = STOPPING
        return STOPPING.text if session.busy else ""

    def undo(self, request: gr.Request) -> tuple[Any, Any, Any, Any]:
        """Remove the last question and answer: input, transcript, notice, inspector."""
        return self._back(request, edit=False)

    def edit(self, request: gr.Request) -> tuple[Any, Any, Any, Any]:
        """The same, with the question back in the input to be changed."""
        return self._back(request, edit=True)

    def _back(self, request: gr.Request, edit: bool) -> tuple[Any, Any, Any, Any]:
        try:
            session = self.session(request)
        except EagleChatError as error:
            return gr.skip(), gr.skip(), error_notice(error), gr.skip()
        session.settle()
        try:
            question = session.take_back()
        except EagleChatError as error:
            return gr.skip(), gr.skip(), _said(session, error), gr.skip()
        return question if edit else gr.skip(), transcript(session), "", self._at_rest(session)

    def clear(self, request: gr.Request) -> tuple[Any, Any, Any, Any]:
        """A new conversation: input, transcript, notice, inspector."""
        try:
            session = self.session(request)
        except EagleChatError as error:
            return gr.skip(), gr.skip(), error_notice(error), gr.skip()
        session.clear()
        return gr.skip(), transcript(session), "", self._at_rest(session)

    @_last_word
    def compare(
        self, request: gr.Request, question: str, left: str, right: str, *values: Any
    ) -> Iterator[tuple[Any, ...]]:
        """Two answers: lanes, verdict, explorer, notice, start and stop buttons."""
        try:
            session = self.session(request)
        except EagleChatError as error:
            yield gr.skip(), gr.skip(), gr.skip(), error_notice(error), gr.skip(), gr.skip()
            return
        for one in comparing.compare(self._service, session, question, (left, right), Controls(*values)):
            pictures = map(_or_as_it_was, (one.lanes, one.verdict, one.explorer))
            yield *pictures, _stopping(session, one), _button(not one.running), _button(one.running)
        if session.forget_passing():
            time.sleep(LATE)
            yield *(gr.skip(),) * 3, one.notice, gr.skip(), gr.skip()

    @_last_word
    def sample(
        self, request: gr.Request, prompt: str, rule: str, policy: str, draws: float, temperature: float, *values: Any
    ) -> Iterator[tuple[Any, ...]]:
        """First tokens: picture, notice, start and stop buttons."""
        try:
            session = self.session(request)
        except EagleChatError as error:
            yield gr.skip(), error_notice(error), gr.skip(), gr.skip()
            return
        arguments = (prompt, rule, draws, temperature, Controls(*values), policy)
        for one in lossless.sample(self._service, session, *arguments):
            yield _or_as_it_was(one.picture), _stopping(session, one), _button(not one.running), _button(one.running)
        if session.forget_passing():
            time.sleep(LATE)
            yield gr.skip(), one.notice, gr.skip(), gr.skip()

    def leave(self, request: gr.Request) -> None:
        """The tab was closed, or its connection was lost."""
        self._sessions.leave(key_of(request))


def _or_as_it_was(value: Any) -> Any:
    return gr.skip() if value is None else value


def _stopping(session: Session, one: comparing.Comparison | lossless.Sampled) -> str:
    """The notice; of what has been stopped, that."""
    return STOPPING.text if one.running and session.remark is STOPPING else one.notice


def _said(session: Session, error: EagleChatError) -> str:
    """The error as a notice; an answer being made leaves it there for a while."""
    session.remark = Remark(error_notice(error), time.monotonic() + READABLE, isinstance(error, BusyError))
    return session.remark.text


def _chat_outputs(picture: Picture, inspector: Any, switched: bool, notice: str) -> tuple[Any, ...]:
    """As the chat's outputs; `inspector` and buttons only where they change."""
    question = gr.skip() if picture.question is None else picture.question
    buttons = (_button(not picture.running), _button(picture.running)) if switched else (gr.skip(), gr.skip())
    return question, picture.transcript, inspector or gr.skip(), notice, *buttons


def _button(active: bool) -> Any:
    return gr.update(interactive=active)
