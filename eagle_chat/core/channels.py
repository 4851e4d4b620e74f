"""The channels of gpt-oss (OpenAI's harmony format). An answer is several messages, each behind a header that names its
channel; all but "final" is reasoning, and becomes text between <think> and </think>, as other models write it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eagle_chat.core.detokenizer import Decoder, Detokenizer
from eagle_chat.core.thinking import CLOSE, OPEN

FINAL, ANSWERER = "final", "assistant"


@dataclass(frozen=True)
class Marks:
    """Token ids: `start` and `channel` begin the two parts of a header, `message` ends it, `end` ends a message."""

    start: int
    channel: int
    message: int
    end: int


def marks_of(tokenizer: Any, template: str) -> Marks | None:
    """The marks of a tokenizer whose chat template has channels; None for any other."""
    names = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
    vocabulary = tokenizer.get_vocab() if "<|channel|>" in template else {}
    return Marks(*(vocabulary[name] for name in names)) if all(name in vocabulary for name in names) else None


class ChannelDetokenizer:
    """`Detokenizer` for an answer in channels: headers are not text, reasoning stands between its marks."""

    def __init__(self, decoder: Decoder, marks: Marks, prompt: Sequence[int] = ()) -> None:
        """`prompt`: what the answer follows; it may end inside a message, where an answer goes on."""
        self._decoder, self._marks = decoder, marks
        self._text = Detokenizer(decoder)
        self._header: list[int] | None = None  # tokens since the last mark that began a part of a header
        self._in_channel = False
        self.thinking = False
        known = {marks.start, marks.channel, marks.message, marks.end}
        for token in prompt:
            if token in known or self._header is not None:
                self.feed(token)
        if not self._in_channel and self._header_text() == ANSWERER:
            self._header = None  # a model that names no channel answers at once

    def _header_text(self) -> str:
        return self._decoder.decode(self._header or [])

    def feed(self, token_id: int) -> str:
        """Take one token; the text that became certain, perhaps none."""
        if token_id in (self._marks.start, self._marks.channel):
            self._header, self._in_channel = [], token_id == self._marks.channel
            return self._end_of_message()
        if token_id == self._marks.message:
            words = self._header_text().split()
            reasoning = self._in_channel and words[:1] != [FINAL]
            self._header = None
            return self._turn(reasoning)
        if token_id == self._marks.end:
            return self._end_of_message()
        if self._header is not None:
            self._header.append(token_id)
            return ""
        return self._text.feed(token_id)

    def flush(self) -> str:
        """What was held back, as it stands."""
        return self._text.flush()

    def _end_of_message(self) -> str:
        rest = self._text.flush()
        self._text = Detokenizer(self._decoder)
        return rest

    def _turn(self, reasoning: bool) -> str:
        """The mark between what was said and what follows."""
        before, self.thinking = self.thinking, reasoning
        if reasoning:
            return "\n" if before else f"{OPEN}\n"
        return f"\n{CLOSE}\n\n" if before else ""
