"""Keeps the reasoning of a model that thinks off the screen; what is recorded and remembered stays whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from eagle_chat.core.events import Committed, Event, Finished
from eagle_chat.core.thinking import ThinkingFilter


def hiding(show: Callable[[Event], None], opened: bool) -> Callable[[Event], None]:
    """`show`, told of the answer's text alone. `opened`: the prompt ends inside the reasoning."""
    reasoning = ThinkingFilter(opened)

    def take(event: Event) -> None:
        if isinstance(event, Committed):
            pieces = [reasoning.feed(piece) for piece in event.pieces or [event.text]]
            event = dataclasses.replace(event, text="".join(pieces), pieces=pieces if event.pieces else [])
        elif isinstance(event, Finished):
            event = dataclasses.replace(event, text=reasoning.feed(event.text) + reasoning.flush())
        show(event)

    return take
