"""Named endpoints for programs (`gradio_client`): the same engine, queue and limits as the page.

client = gradio_client.Client("http://127.0.0.1:7860")
client.predict("Why is the sky blue?", api_name="/chat")     # goes on with this client's conversation
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator
from typing import Any

import gradio as gr
from gradio.events import api

from eagle_chat.core import recording
from eagle_chat.core.errors import EagleChatError
from eagle_chat.core.metrics import same_text
from eagle_chat.webui import comparing
from eagle_chat.webui.chatting import answer
from eagle_chat.webui.controls import DRAFTING, Controls
from eagle_chat.webui.handlers import Handlers, status_text
from eagle_chat.webui.service import EngineService
from eagle_chat.webui.session import Session


class Endpoints:
    """What programs may ask for. Errors come back in one line."""

    def __init__(self, service: EngineService, handlers: Handlers, defaults: Controls) -> None:
        self._service, self._handlers, self._defaults = service, handlers, defaults

    def declare(self) -> None:
        """Add all of them to the page being built."""
        api(self.chat, api_name="chat", concurrency_limit=None)
        if not self._service.is_server:
            api(self.compare, api_name="compare", concurrency_limit=None)
        for endpoint in (self.undo, self.clear, self.stop, self.recording, self.status):
            api(endpoint, api_name=endpoint.__name__, queue=False)

    def chat(
        self, request: gr.Request, question: str, options: dict[str, Any] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Ask in this client's conversation. Streams {"text", "done"}; the last one has the answer's figures too, as
        `generate --json` gives them. `options`: any of the page's settings, such as {"temperature": 0.7, "seed": 7}."""
        controls = self._controls(options)
        session = self._session(request)
        try:
            session.take(question)
        except EagleChatError as error:
            raise gr.Error(str(error)) from error
        for picture in answer(self._service, session, controls):
            if picture.running:
                yield {"text": picture.text, "done": False}
            elif picture.error is not None:
                raise gr.Error(str(picture.error)) from picture.error
            elif picture.metrics is None or not picture.metrics.token_ids:
                raise gr.Error(picture.notice or "a new conversation was begun before the answer")
            else:
                yield {**picture.metrics.summary(), "done": True}

    def compare(
        self,
        request: gr.Request,
        question: str,
        left: str = "none",
        right: str = "dynamic",
        options: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Answer a question in two ways: {"same_text", "left", "right"}, the figures of both."""
        controls = self._controls(options)
        states = comparing.compare(self._service, self._session(request), question, (left, right), controls)
        (last,) = deque(states, maxlen=1)
        if last.metrics is None:
            raise gr.Error(last.notice or "stopped before both answers were there")
        first, second = last.metrics
        return {"same_text": same_text(first, second)[0], "left": first.summary(), "right": second.summary()}

    def undo(self, request: gr.Request) -> str:
        """Remove this client's last question and answer; the question."""
        try:
            return self._session(request).take_back()
        except EagleChatError as error:
            raise gr.Error(str(error)) from error

    def clear(self, request: gr.Request) -> str:
        """Begin a new conversation."""
        self._session(request).clear()
        return "cleared"

    def stop(self, request: gr.Request) -> str:
        """End the answer being made after its cycle."""
        self._session(request).stop()
        return "stopping"

    def recording(self, request: gr.Request) -> str:
        """This client's answers as a recording, JSON lines."""
        return "".join(recording.lines(self._session(request).runs()))

    def status(self) -> dict[str, Any]:
        """{"phase", "jobs", "text"} of the engine."""
        now = self._service.status
        return {"phase": now.phase, "jobs": now.jobs, "text": status_text(now, self._service, "the model")}

    def _session(self, request: gr.Request) -> Session:
        try:
            return self._handlers.session(request)
        except EagleChatError as error:
            raise gr.Error(str(error)) from error

    def _controls(self, options: dict[str, Any] | None) -> Controls:
        known = {field.name for field in dataclasses.fields(Controls)}
        if self._service.is_server:
            known -= set(DRAFTING)
        unknown = sorted(set(options or {}) - known)
        if unknown:
            raise gr.Error(f"options among {', '.join(sorted(known))} expected, found {', '.join(unknown)}")
        return dataclasses.replace(self._defaults, **(options or {}))
