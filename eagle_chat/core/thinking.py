"""Models that think write their reasoning between <think> and </think>, then the answer."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


def split(text: str) -> tuple[str | None, str]:
    """Reasoning and answer of a whole text; None where it has no reasoning. Without <think> in front everything before
    </think> is reasoning: some templates open it in the prompt."""
    before, mark, answer = text.partition(CLOSE)
    if not mark:
        return None, text
    return before.partition(OPEN)[2].strip() if OPEN in before else before.strip(), answer.lstrip()


def ends_inside(text: str) -> bool:
    """Whether a text ends before its last reasoning does."""
    return text.rfind(OPEN) > text.rfind(CLOSE)


class ThinkingFilter:
    """The answer alone, of a text that comes in pieces. `opened`: the prompt ends inside the reasoning."""

    def __init__(self, opened: bool = False) -> None:
        self.inside = opened
        self._before_answer = True
        self._held = ""

    def feed(self, piece: str) -> str:
        """What of the answer is known with `piece`; the beginnings of marks are held back."""
        text = self._held + piece
        self._held = ""
        if self.inside:
            _, mark, rest = text.partition(CLOSE)
            if not mark:
                self._held = text[-(len(CLOSE) - 1) :]
                return ""
            self.inside, text = False, rest
        elif self._before_answer:
            start = text.lstrip()
            if start.startswith(OPEN):
                self.inside = True
                return self.feed(start.removeprefix(OPEN))
            if OPEN.startswith(start):
                self._held = text
                return ""
        if self._before_answer:
            text = text.lstrip()
            self._before_answer = not text
        return text

    def flush(self) -> str:
        """What was held back, at the end: nothing of a reasoning that was not finished."""
        held, self._held = self._held, ""
        return "" if self.inside else held
