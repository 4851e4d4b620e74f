"""What happens when somebody opens or saves a recording: from the page's values to those it shows next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from eagle_chat.core.errors import EagleChatError, UserError
from eagle_chat.webui import recordings
from eagle_chat.webui.chatting import error_notice
from eagle_chat.webui.live import shown
from eagle_chat.webui.service import EngineService
from eagle_chat.webui.session import Session, pack


class FileHandlers:
    """The page's actions on recordings. Each gets the request, and never raises."""

    def __init__(self, service: EngineService, session: Callable[[gr.Request], Session]) -> None:
        """`session(request)`: who is asking; EagleChatError where there are too many."""
        self._service, self._session = service, session

    def open_bundled(self, name: str | None, request: gr.Request) -> tuple[Any, Any]:
        """Show a recording that comes with the program: explorer, notice."""
        return self._open(request, lambda: recordings.open_bundled(name or ""))

    def open_upload(self, path: str | None, request: gr.Request) -> tuple[Any, Any]:
        """Show a recording that somebody sent: explorer, notice."""
        return self._open(request, lambda: recordings.open_upload(path))

    def _open(self, request: gr.Request, read: Callable[[], Any]) -> tuple[Any, Any]:
        try:
            session = self._session(request)
            if session.busy:
                raise UserError("a finished answer expected, found one still being made: open the recording after it")
            runs = read()
            value = shown(runs)
        except EagleChatError as error:
            return gr.skip(), error_notice(error)
        session.opened = pack(runs)
        answers = "1 recorded answer" if len(runs) == 1 else f"{len(runs)} recorded answers"
        return value, f"Opened {answers}; the next question brings the chat back."

    def save_jsonl(self, request: gr.Request) -> tuple[Any, Any]:
        """What is shown as a recording: file, notice."""
        return self._made(request, lambda session: self._shown(session, "jsonl"))

    def save_html(self, request: gr.Request) -> tuple[Any, Any]:
        """What is shown as one page: file, notice."""
        return self._made(request, lambda session: self._shown(session, "html"))

    def save_comparison_jsonl(self, request: gr.Request) -> tuple[Any, Any]:
        """The last comparison as a recording: file, notice."""
        return self._made(request, lambda session: self._compared(session, "jsonl"))

    def save_comparison_html(self, request: gr.Request) -> tuple[Any, Any]:
        """The last comparison as one page: file, notice."""
        return self._made(request, lambda session: self._compared(session, "html"))

    def _shown(self, session: Session, kind: str) -> dict[str, Any]:
        at_rest = [] if self._service.is_server else recordings.first()
        return recordings.saved(session, kind, self._service.measured(), at_rest)

    def _compared(self, session: Session, kind: str) -> dict[str, Any]:
        return recordings.saved_comparison(session, kind, self._service.measured())

    def _made(self, request: gr.Request, make: Callable[[Session], dict[str, Any]]) -> tuple[Any, Any]:
        try:
            return make(self._session(request)), ""
        except EagleChatError as error:
            return gr.skip(), error_notice(error)
