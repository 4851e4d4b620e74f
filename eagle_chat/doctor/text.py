"""The tokenizer and the template against the target."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from eagle_chat.core.chat import Chat, Message
from eagle_chat.core.errors import UserError
from eagle_chat.core.loading import generation_stop_ids, load_tokenizer
from eagle_chat.doctor.findings import Finding, from_error, ok
from eagle_chat.doctor.pair import Names, Shape

GROUP = "text"
LEAST_SHARE = 0.9
"""Models pad their vocabulary to round numbers; a tokenizer that fills less of it is probably another model's."""
_SYSTEM, _QUESTION = "probe-of-system", "probe-of-question"


def check_text(names: Names, shape: Shape) -> Iterator[Finding]:
    """Vocabulary, special tokens, template. Whether the target *knows* these tokens, only a run can tell."""
    try:
        tokenizer = load_tokenizer(names.source)
    except UserError as error:
        yield from_error(GROUP, "tokenizer", error, "its files are missing or damaged")
        return
    yield from _check_vocabulary(tokenizer, shape.target.vocab_size)
    entry = names.entry
    template = names.config.template or (entry.template if entry and not tokenizer.chat_template else None)
    try:
        chat = Chat(tokenizer, generation_stop_ids(shape.target.model), template, names.config.thinking)
    except UserError as error:
        yield from_error(GROUP, "template", error, "this tokenizer brings none, and the name tells no family")
        return
    yield from _check_template(chat)
    yield from _check_stops(chat, shape)


def _check_vocabulary(tokenizer: Any, vocab_size: int) -> Iterator[Finding]:
    largest = max(tokenizer.get_vocab().values()) + 1
    figures = {"tokenizer": largest, "target": vocab_size}
    found = f"the tokenizer has {largest:,} tokens, the target {vocab_size:,}"
    if largest > vocab_size:
        cause = "it belongs to another model: the target has no embedding for its last tokens"
        remedy = "put the tokenizer of this target into its folder"
        yield Finding(GROUP, "tokenizer", "error", found, cause, remedy, figures)
    elif largest < LEAST_SHARE * vocab_size:
        cause = "it is probably another model's: padding leaves a few tokens over, not so many"
        remedy = "put the tokenizer of this target into its folder"
        yield Finding(GROUP, "tokenizer", "warning", found, cause, remedy, figures)
    else:
        yield ok(GROUP, "tokenizer", f"{largest:,} tokens", **figures)


def _check_template(chat: Chat) -> Iterator[Finding]:
    question: Message = {"role": "user", "content": _QUESTION}
    try:
        text = chat.prompt([question])
    except UserError as error:
        yield from_error(GROUP, "template", error, "the template is made for other conversations", "--template FILE")
        return
    if _QUESTION not in text:
        cause = "it is not a chat template, or damaged"
        yield Finding(GROUP, "template", "error", "the template leaves the question out", cause, "--template FILE")
        return
    bos = chat.tokenizer.bos_token_id
    # Only those in front: some models begin every turn with the same token.
    count = sum(1 for _ in itertools.takewhile(lambda token: token == bos, chat.encode([question])))
    if count > 1:
        cause = "the template writes it, and the tokenizer adds another one"
        found = f"a prompt begins with {count} BOS tokens"
        yield Finding(GROUP, "template", "warning", found, cause, "--template FILE with one of them left out")
    else:
        yield ok(GROUP, "template", f"renders a conversation, {'with its' if count else 'without a'} BOS")
    try:
        knows_system = _SYSTEM in chat.prompt([{"role": "system", "content": _SYSTEM}, question])
    except UserError:
        knows_system = False
    if not knows_system:
        remedy = "put instructions into the first question"
        yield Finding(GROUP, "system", "note", "no room for a system text", "the model was made without", remedy)


def _check_stops(chat: Chat, shape: Shape) -> Iterator[Finding]:
    beyond = sorted(token for token in chat.stop_ids if token >= shape.target.vocab_size)
    if not chat.stop_ids:
        yield Finding(
            GROUP,
            "stop",
            "warning",
            "nothing ends an answer but the token budget",
            "neither generation_config.json nor the tokenizer nor the template names an end",
            "set eos_token_id in generation_config.json, or give --stop TEXT",
        )
    elif beyond:
        yield Finding(
            GROUP,
            "stop",
            "error",
            f"stop tokens {beyond} are beyond the target's {shape.target.vocab_size:,}",
            "tokenizer or generation_config.json belong to another model",
            "put those of this target into its folder",
        )
    else:
        shown = ", ".join(chat.token_text(token) for token in sorted(chat.stop_ids))
        yield ok(GROUP, "stop", f"an answer ends with {shown}", stop_ids=sorted(chat.stop_ids))
