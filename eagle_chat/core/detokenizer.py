"""Text that grows with the tokens: pieces concatenate to the decode of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
MAX_PENDING = 3
"""An unfinished UTF-8 character has at most 3 bytes, shown as at most 3 replacement characters."""
WINDOW = 24
"""Tokens after which the decoded window moves on, so that a step costs the same in a long answer."""
CONTEXT = 6
"""Tokens kept in front of a moved window: decoders look back (leading spaces, byte runs)."""


class Decoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the tokens, special tokens left out, nothing cleaned up."""


class Detokenizer:
    """Incremental decode. Holds back the last characters while they may be half a character."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._window: list[int] = []
        self._shown = ""

    def feed(self, token_id: int) -> str:
        """Take one token; the text that became certain, perhaps none."""
        self._window.append(token_id)
        text = self._decoder.decode(self._window)
        certain = len(text)
        while certain > len(self._shown) and len(text) - certain < MAX_PENDING and text[certain - 1] == REPLACEMENT:
            certain -= 1
        if not text.startswith(self._shown):
            return ""
        piece = text[len(self._shown) : certain]
        self._shown += piece
        if len(self._window) > WINDOW and certain == len(text):
            self._window = self._window[-CONTEXT:]
            self._shown = self._decoder.decode(self._window)
        return piece

    def flush(self) -> str:
        """What was held back, as it stands."""
        text = self._decoder.decode(self._window)
        piece = text[len(self._shown) :] if text.startswith(self._shown) else ""
        self._shown = text
        return piece
