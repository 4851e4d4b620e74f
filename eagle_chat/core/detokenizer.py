"""Text that grows with the tokens: pieces concatenate to the decode of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

REPLACEMENT = "\ufffd"
LONGEST_CHARACTER = 4
"""Bytes of UTF-8."""
WINDOW = 24
"""Tokens after which the decoded window moves on, so that a step costs the same in a long answer."""
CONTEXT = 6
"""Tokens kept in front of a moved window: decoders look back (leading spaces, byte runs)."""


class Decoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the tokens, special tokens left out, nothing cleaned up."""


class PlainDecoder:
    """A tokenizer's own decode: special tokens left out, spaces as they are."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `Decoder`."""
        ids = list(token_ids)
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


class TextSource(Protocol):
    """Text that grows with the tokens of one answer."""

    def feed(self, token_id: int) -> str:
        """Take one token; the text that became certain, perhaps none."""

    def flush(self) -> str:
        """What was held back, as it stands."""


class Detokenizer:
    """Incremental decode. Holds back replacement signs at the end: they may be half a character."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._window: list[int] = []
        self._shown = ""

    def feed(self, token_id: int) -> str:
        """Take one token; the text that became certain, perhaps none."""
        self._window.append(token_id)
        text = self._decoder.decode(self._window)
        if not text.startswith(self._shown):
            return "" if text.endswith(REPLACEMENT) else self._after_broken_run(text)
        certain = max(len(text.rstrip(REPLACEMENT)), len(self._shown))
        piece = text[len(self._shown) : certain]
        self._shown += piece
        if len(self._window) > WINDOW and certain == len(text):
            self._move_window(text)
        return piece

    def flush(self) -> str:
        """What was held back, as it stands."""
        text = self._decoder.decode(self._window)
        if not text.startswith(self._shown):
            return self._after_broken_run(text)
        piece = text[len(self._shown) :]
        self._shown = text
        return piece

    def _after_broken_run(self, text: str) -> str:
        """What follows a run of bytes that turned out to be no text, behind one sign for it.

        A byte-fallback decoder takes a run as a whole: one half character at its end unmakes those before it. They
        were right when they were shown, so they stay.
        """
        while not text.startswith(self._shown):
            self._shown = self._shown[:-1]
        rest = text[len(self._shown) :]
        self._shown = text
        return (REPLACEMENT if rest.startswith(REPLACEMENT) else "") + rest.lstrip(REPLACEMENT)

    def _move_window(self, text: str) -> None:
        """Keep the last tokens only, from where a character begins."""
        for size in range(CONTEXT, CONTEXT + LONGEST_CHARACTER):
            shown = self._decoder.decode(self._window[-size:])
            if shown and text.endswith(shown):
                self._window, self._shown = self._window[-size:], shown
                return
