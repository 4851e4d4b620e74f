"""A conversation: questions, answers, and how it is put to the engine. Nothing here draws, saves or loads."""

from __future__ import annotations

from dataclasses import dataclass, field

from eagle_chat.core.chat import Message
from eagle_chat.core.events import Event, FinishReason


@dataclass
class Turn:
    """A question and what became of it. `finish_reason` None: never answered. `target`: who answered."""

    question: str
    answer: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    target: str = ""
    seed: int = 0
    figures: str = ""
    events: list[Event] = field(default_factory=list)

    @property
    def answered(self) -> bool:
        """Whether there is an answer that the next question can build on."""
        return bool(self.answer) or self.finish_reason == "stop"


@dataclass
class Conversation:
    """The turns so far and the system message in front of them."""

    system: str | None = None
    turns: list[Turn] = field(default_factory=list)

    def messages(self, question: str | None = None) -> list[Message]:
        """What the engine is asked; `question` comes last."""
        messages: list[Message] = []
        if self.system is not None:
            messages.append({"role": "system", "content": self.system})
        for turn in self.turns:
            messages.append({"role": "user", "content": turn.question})
            messages.append({"role": "assistant", "content": turn.answer})
        if question is not None:
            messages.append({"role": "user", "content": question})
        return messages

    def before_last(self) -> Conversation:
        """The conversation without its last turn."""
        return Conversation(self.system, self.turns[:-1])

    @property
    def last(self) -> Turn | None:
        """The newest turn."""
        return self.turns[-1] if self.turns else None
