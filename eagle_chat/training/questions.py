"""Questions that the target writes itself: it continues its own template's user header.

A small model left alone writes odd questions of few kinds. So the first words are given, a kind at a time in turn,
and the temperature is kept low (Magpie, arXiv 2406.08464, has the idea of the bare header).
"""

from __future__ import annotations

from dataclasses import dataclass

from eagle_chat.core.chat import Chat, Message
from eagle_chat.core.errors import UserError
from eagle_chat.training.conversations import common_length

OPENINGS: dict[str, tuple[str, ...]] = {
    "writing": (
        "Write a short story about", "Write an email to", "Write a poem about", "Write a paragraph about",
        "Write a speech about", "Draft a letter to", "Write a review of", "Write a dialogue between",
        "Write a blog post about", "Write a product description for", "Create a slogan for",
    ),
    "explanation": (
        "Explain how", "Explain why", "Explain the concept of", "Can you explain", "Describe how", "Describe the",
        "Help me understand", "In simple words, what is", "Explain to a child what",
    ),
    "how-to": (
        "How do I", "How can I", "What is the best way to", "Give me step by step instructions to",
        "What should I do if", "How should I", "I want to learn", "I need help with",
    ),
    "knowledge": (
        "What is", "What are", "Who was", "When did", "Where is", "Why do", "Why is", "Which", "How many",
        "Is it true that",
    ),
    "translation": (
        "Translate this sentence into French:", "Translate into Spanish:",
        "Translate the following text to German:", "Rewrite this sentence in a formal tone:",
        "Correct the grammar of this sentence:", "Paraphrase:",
    ),
    "mathematics": (
        "Solve", "Calculate", "What is the value of", "If a train", "A shop sells", "Sarah has",
        "Find the area of", "Simplify the expression", "Tom buys", "What percentage of",
    ),
    "comparison": (
        "Compare", "What is the difference between", "Which is better:",
        "What are the advantages and disadvantages of", "Discuss the pros and cons of",
    ),
    "code": (
        "Write a Python function that", "Write a Python program to", "Write a JavaScript function to",
        "Write an SQL query", "Write a function in C++ that", "How do I write a loop in",
        "Explain what this code does:", "Write a class in Java", "Fix the error in this code:",
        "Write HTML code for",
    ),
    "extraction": (
        "Summarize the following text:", "Extract the names from this text:", "Classify the following",
        "Identify the", "List the main points of", "Given the following text,",
    ),
    "lists": (
        "List", "Give me a list of", "Give me five", "Name three", "What are some", "Suggest", "Recommend",
        "Provide ten",
    ),
    "planning": (
        "Plan a", "Create a schedule for", "Design a", "Make a plan for", "Outline", "Organize",
    ),
    "roleplay": (
        "Imagine you are", "Pretend to be", "Act as", "You are a", "Suppose you were", "Answer as if you were",
    ),
    "reasoning": (
        "If all", "What would happen if", "Suppose that", "A man", "Why would", "Which of these does not belong:",
        "What conclusion", "Do you think", "Should",
    ),
    "free": (
        "",
    ),
}  # fmt: skip
"""Kinds of questions and first words; "free" gives none."""


@dataclass(frozen=True)
class Opening:
    """What kind of question is to be written, and its first words."""

    kind: str
    words: str


def opening(number: int) -> Opening:
    """The opening of question `number`: kinds in turn, and within a kind its first words in turn."""
    kinds = list(OPENINGS)
    kind = kinds[number % len(kinds)]
    words = OPENINGS[kind]
    return Opening(kind, words[(number // len(kinds)) % len(words)])


def user_header(chat: Chat, system: str | None = None) -> str:
    """The rendered text up to where the user's words begin, from the template alone.

    Two conversations that differ from the first letter of the user on are rendered; what they share in front is the
    header. UserError where the template puts nothing there.
    """
    start: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    texts = [chat.prompt([*start, {"role": "user", "content": probe}]) for probe in ("Aa", "Zz")]
    header = texts[0][: common_length(*texts)]
    if not header:
        raise UserError(
            "a template with something before the user's words expected, found none: the target cannot write "
            "questions by itself, give a --source"
        )
    return header
