"""Prompt formats for tokenizers that bring none: families by name, of fschat or of `assets/templates`, or a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from eagle_chat.core.assets import asset_path
from eagle_chat.core.errors import UserError


class Message(TypedDict):
    """One turn: `role` is system, user or assistant."""

    role: str
    content: str


FSCHAT_FAMILIES = {
    "vicuna": "vicuna_v1.1",
    "llama-2": "llama-2",
    "mistral": "mistral",
    "zephyr": "zephyr",
    "tinyllama": "TinyLlama",
    "qwen-7b-chat": "qwen-7b-chat",
}
"""Families that may be named by `--template`, and their templates in fschat. By its own look-up a name that fschat does
not know would silently get an unrelated few-shot prompt."""
JINJA_FAMILIES = ("chatml", "llama-3", "gemma")
"""Those that fschat lacks; their templates lie in `assets/templates`."""
FAMILIES = (*FSCHAT_FAMILIES, *JINJA_FAMILIES)

AUTHORS = "@authors"
"""Stands for the system text that the EAGLE authors measured with, in `--system`."""
AUTHORS_FAMILIES = ("llama-2", "llama-3")
"""Families measured with Llama 2's published system text. Vicuna's own is part of its template in fschat."""


def jinja_source(template: str) -> str | None:
    """The text of a template by family or file; None for a family of fschat's. UserError for anything else."""
    if template in FSCHAT_FAMILIES:
        return None
    path = asset_path("templates", f"{template}.jinja") if template in JINJA_FAMILIES else Path(template).expanduser()
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = "it is not UTF-8 text" if isinstance(error, ValueError) else error.strerror
        raise UserError(
            f"a template file or one of {', '.join(FAMILIES)} expected, found {template!r} ({reason}): check --template"
        ) from error


def fschat_prompt(family: str, messages: Sequence[Message], answer_follows: bool) -> str:
    """A conversation in the format of one of `FSCHAT_FAMILIES`."""
    # The light import: fastchat.model would load torch and every adapter.
    from fastchat.conversation import get_conv_template

    conversation = get_conv_template(FSCHAT_FAMILIES[family])
    for message in messages:
        if message["role"] == "system":
            conversation.set_system_message(message["content"])
        else:
            conversation.append_message(conversation.roles[message["role"] == "assistant"], message["content"])
    if answer_follows:
        conversation.append_message(conversation.roles[1], None)
    text: str = conversation.get_prompt()
    return text


def folded(messages: Sequence[Message]) -> list[Message]:
    """The conversation with its system text in front of the first question, for families without that role."""
    if not messages or messages[0]["role"] != "system":
        return list(messages)
    system, rest = messages[0]["content"].strip(), list(messages[1:])
    if not rest or rest[0]["role"] != "user":
        rest.insert(0, {"role": "user", "content": ""})
    joined = "\n\n".join(filter(None, (system, rest[0]["content"])))
    return [{"role": "user", "content": joined}, *rest[1:]]


def system_text(asked: str | None, family: str | None) -> str | None:
    """The system text to use; `@authors` becomes theirs for this family. UserError where they had none."""
    if asked != AUTHORS:
        return asked
    if family == "vicuna":
        return None
    if family not in AUTHORS_FAMILIES:
        raise UserError(
            f"a target of the families vicuna, {', '.join(AUTHORS_FAMILIES)} expected for --system {AUTHORS}, found "
            f"{family or 'one that is not in the table'}: write the text out"
        )
    return asset_path("prompts", "authors-system.txt").read_text(encoding="utf-8").rstrip("\n")
