"""Named endpoints for programs (`gradio_client`): the same engine, queue and limits as the page.

client = gradio_client.Client("http://127.0.0.1:7860")
client.predict("Why is the sky blue?", api_name="/chat")     # goes on with this client's conversation
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import gradio as gr

from eagle_chat.core import recording
from eagle_chat.core.errors import EagleChatError
from eagle_chat.webui import comparing
from eagle_chat.webui.chatting import answer
from eagle_chat.webui.controls import Controls
from eagle_chat.webui.handlers import Handlers, status_text
from eagle_chat.webui.service import EngineService


def add_endpoints(service: EngineService, handlers: Handlers, defaults: Controls) -> None:
    """Declare /chat, /undo, /clear, /stop, /compare, /recording and /status on the page being built."""

    def controls(options: dict[str, Any] | None) -> Controls:
        known = {field.name for field in dataclasses.fields(Controls)}
        unknown = sorted(set(options or {}) - known)
        if unknown:
            raise gr.Error(f"options among {', '.join(sorted(known))} expected, found {', '.join(unknown)}")
        return dataclasses.replace(defaults, **(options or {}))

    def chat(request: gr.Request, question: str, options: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Ask in this client's conversation. Streams {"text", "done"}; the last one also has the answer's figures, as
        `generate --json` gives them. `options`: any of the page's settings, such as {"temperature": 0.7, "seed": 7}."""
        chosen = controls(options)
        try:
            session = handlers.session(request)
            session.take(question)
        except EagleChatError as error:
            raise gr.Error(str(error)) from error
        for picture in answer(service, session, chosen):
            if picture.running:
                yield {"text": picture.text, "done": False}
            elif picture.metrics is None or not picture.metrics.token_ids:
                raise gr.Error(picture.notice)
            else:
                yield {**picture.metrics.summary(), "done": True}

    def compare(
        request: gr.Request,
        question: str,
        left: str = "none",
        right: str = "dynamic",
        options: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Answer a question in two ways: {"same_text", "left", "right"}, the figures of both."""
        try:
            session = handlers.session(request)
        except EagleChatError as error:
            raise gr.Error(str(error)) from error
        last = None
        for last in comparing.compare(service, session, question, (left, right), controls(options)):
            pass
        if last is None or last.metrics is None:
            raise gr.Error(last.notice if last else "nothing was compared")
        first, second = last.metrics
        return {
            "same_text": comparing.same_text(first, second)[0],
            "left": first.summary(),
            "right": second.summary(),
        }

    def undo(request: gr.Request) -> str:
        """Remove this client's last question and answer; the question."""
        try:
            return handlers.session(request).take_back()
        except EagleChatError as error:
            raise gr.Error(str(error)) from error

    def clear(request: gr.Request) -> str:
        """Begin a new conversation."""
        handlers.clear(request)
        return "cleared"

    def stop(request: gr.Request) -> str:
        """End the answer being made after its cycle."""
        handlers.stop(request)
        return "stopping"

    def recorded(request: gr.Request) -> str:
        """This client's answers as a recording, JSON lines."""
        try:
            return "".join(recording.lines(handlers.session(request).runs()))
        except EagleChatError as error:
            raise gr.Error(str(error)) from error

    def status() -> dict[str, Any]:
        """{"phase", "jobs", "text"} of the engine."""
        now = service.status
        return {"phase": now.phase, "jobs": now.jobs, "text": status_text(now, service, "the model")}

    gr.api(chat, api_name="chat", concurrency_limit=None)
    gr.api(compare, api_name="compare", concurrency_limit=None)
    gr.api(undo, api_name="undo", queue=False)
    gr.api(clear, api_name="clear", queue=False)
    gr.api(stop, api_name="stop", queue=False)
    gr.api(recorded, api_name="recording", queue=False)
    gr.api(status, api_name="status", queue=False)
