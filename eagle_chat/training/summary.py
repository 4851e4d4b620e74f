"""What a corpus holds: tokens, distinct questions, loops, and how much of it a draft vocabulary covers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eagle_chat.core.chat import Chat
from eagle_chat.training import filters
from eagle_chat.training.conversations import Conversation, normalised

VOCABULARY_SIZES = (1024, 2048, 4096, 8192, 16384, 32000)
_CHUNK = 256


@dataclass(frozen=True)
class Summary:
    """`tokens`: of the answers, without end markers. `loop_rate`: share of the answers that end in a circle.
    `coverage`: for each draft vocabulary size, the share of the answer tokens that it holds."""

    conversations: int
    answers: int
    tokens: int
    distinct_questions: int
    loop_rate: float
    distinct_tokens: int
    coverage: dict[int, float]

    def lines(self) -> list[str]:
        """For people."""
        covered = ", ".join(f"{size:,} {share:.1%}" for size, share in self.coverage.items())
        return [
            f"{self.conversations:,} conversations, {self.answers:,} answers, {self.tokens:,} answer tokens",
            f"{self.distinct_questions:,} distinct first questions; {self.loop_rate:.1%} of the answers loop",
            f"{self.distinct_tokens:,} distinct tokens; coverage by draft vocabulary: {covered}",
        ]


def summarise(conversations: Iterable[Conversation], chat: Chat, sizes: Sequence[int] = VOCABULARY_SIZES) -> Summary:
    """The summary of a corpus."""
    counts: Counter[int] = Counter()
    questions: set[str] = set()
    num_conversations = num_answers = num_loops = 0
    waiting: list[str] = []

    def count_waiting() -> None:
        nonlocal num_loops
        if waiting:
            for tokens in chat.tokenizer(waiting, add_special_tokens=False)["input_ids"]:
                counts.update(tokens)
                num_loops += filters.loops(tokens)
            waiting.clear()

    for conversation in conversations:
        num_conversations += 1
        questions.add(normalised(conversation.question))
        answers = [turn["content"] for turn in conversation.messages if turn["role"] == "assistant"]
        num_answers += len(answers)
        waiting.extend(answers)
        if len(waiting) >= _CHUNK:
            count_waiting()
    count_waiting()
    return Summary(
        num_conversations,
        num_answers,
        counts.total(),
        len(questions),
        num_loops / num_answers if num_answers else 0.0,
        len(counts),
        coverage(counts, sizes),
    )


def coverage(counts: Counter[int], sizes: Sequence[int]) -> dict[int, float]:
    """For each size, the share of all occurrences that its most frequent tokens make up."""
    total = counts.total()
    ordered = [count for _, count in counts.most_common()]
    return {size: sum(ordered[:size]) / total if total else 0.0 for size in sizes}


def refusals(notes: Iterable[dict[str, Any]], what: Literal["refused", "shortened"] = "refused") -> Counter[str]:
    """How many conversations of a corpus were refused, or shortened, by reason."""
    total: Counter[str] = Counter()
    for note in notes:
        total.update(note.get(what, {}))
    return total


def listed(reasons: Counter[str]) -> str:
    """Counts by reason for people, the most frequent first."""
    return ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
