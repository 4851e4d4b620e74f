"""A tiny engine behind the page: real decoding of random models, which can be held still in the middle of an answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from eagle_chat.core.engine import Engine
from eagle_chat.core.events import Committed
from eagle_chat.webui.service import EngineService
from tests.patience import PATIENCE
from tests.tiny import TinyChat, make_head, make_target

HOSTILE = (
    "<think>x</think> List<String> <b>hi</b> <script>window.hacked=1</script> <img src=x onerror='hacked=1'> ${1+1}"
)
"""What CASE 33 asks for, and a little more; without a blank that Markdown would take away."""


class WordChat(TinyChat):
    """Token 7 is the word "t7 "; `words` gives other tokens other texts."""

    def __init__(self, words: dict[int, str] | None = None) -> None:
        super().__init__()
        self.words = words or {}

    def decode(self, token_ids: Any) -> str:
        return "".join(self.token_text(token) for token in token_ids)

    text = decode  # type: ignore[assignment]  # the same signature

    def token_text(self, token_id: int) -> str:
        return self.words.get(token_id, f"t{token_id} ")


class Held(Engine):
    """An engine that goes on only while `gate` is open."""

    def __init__(self, words: dict[int, str] | None = None, head: bool = True, seed: int = 1) -> None:
        target = make_target()
        drafts = make_head("eagle3", target, seed) if head else None
        super().__init__(target, WordChat(words), drafts, "tiny-head" if head else None)  # type: ignore[arg-type]
        self.gate = threading.Event()
        self.gate.set()
        self.held = threading.Event()
        """Set while somebody waits at the gate."""

    def stream(self, *arguments: Any, **options: Any) -> Iterator[Any]:  # type: ignore[override]
        events = super().stream(*arguments, **options)
        try:
            for event in events:
                if isinstance(event, Committed) and not self.gate.is_set():
                    self.held.set()
                    assert self.gate.wait(PATIENCE)
                    self.held.clear()
                yield event
        finally:
            events.close()


def service_of(engine: Engine, **options: Any) -> EngineService:
    """A service whose engine is there."""
    service = EngineService(lambda: engine, **options)
    service.start()
    return service
