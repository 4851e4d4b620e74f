"""From a conversation to token ids and back: the tokenizer's own template first, a named family's where it has none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

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
    "qwen-7b-chat": "qwen-7b-chat",
}
"""Families that may be named by `--template`, and their templates in fschat."""

_PROBE = "eagle-chat-probe"


class Chat:
    """A tokenizer with its template and stop ids."""

    def __init__(self, tokenizer: Any, stop_ids: Sequence[int] = (), template: str | None = None) -> None:
        """`stop_ids`: those of the generation config. `template`: a family, or a file with a Jinja template."""
        self.tokenizer = tokenizer
        self._family: str | None = None
        self._token_texts: dict[int, str] = {}
        if template is not None:
            self._choose_template(template)
        elif not tokenizer.chat_template:
            raise UserError(
                f"a chat template expected in {tokenizer.name_or_path}, found none: give --template with a file or "
                f"one of {', '.join(FSCHAT_FAMILIES)}"
            )
        eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self.stop_ids = frozenset([*stop_ids, *eos, *self._end_markers()])

    def _choose_template(self, template: str) -> None:
        path = Path(template)
        if template in FSCHAT_FAMILIES:
            self._family = FSCHAT_FAMILIES[template]
        elif path.is_file():
            self.tokenizer.chat_template = path.read_text(encoding="utf-8")
        else:
            raise UserError(
                f"a template file or one of {', '.join(FSCHAT_FAMILIES)} expected, found {template!r}: check --template"
            )

    def prompt(self, messages: Sequence[Message], answer_follows: bool = True) -> str:
        """The conversation as the target wants to read it, up to where its answer begins.

        Without `answer_follows`: as it stands, with the last turn's end marker, the way training text is rendered.
        """
        if self._family is not None:
            return self._fschat_prompt(messages, answer_follows)
        try:
            text: str = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=answer_follows
            )
        except Exception as error:  # a template raises whatever its author chose
            raise UserError(f"this model's chat template refuses the conversation: {error}") from error
        return text

    def _fschat_prompt(self, messages: Sequence[Message], answer_follows: bool) -> str:
        # The light import: fastchat.model would load torch and every adapter.
        from fastchat.conversation import get_conv_template

        conversation = get_conv_template(self._family)
        for message in messages:
            if message["role"] == "system":
                conversation.set_system_message(message["content"])
            else:
                conversation.append_message(conversation.roles[message["role"] == "assistant"], message["content"])
        if answer_follows:
            conversation.append_message(conversation.roles[1], None)
        text: str = conversation.get_prompt()
        return text

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of `prompt`, with exactly one BOS where the tokenizer uses one."""
        return self.encode_text(self.prompt(messages))

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a rendered text."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return self._missing_bos(ids) + ids

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids of a rendered text, and for each the characters (start, end) it stands for.

        UserError where the tokenizer cannot tell.
        """
        try:
            encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        except NotImplementedError as error:
            raise UserError(
                f"a tokenizer that knows where its tokens stand in the text expected, found a slow one in "
                f"{self.tokenizer.name_or_path}: a tokenizer.json is needed there"
            ) from error
        bos = self._missing_bos(encoded["input_ids"])
        return bos + encoded["input_ids"], [(0, 0)] * len(bos) + encoded["offset_mapping"]

    def _missing_bos(self, ids: list[int]) -> list[int]:
        """The BOS, if the tokenizer puts one in front of a text and the template has not. (What else it would add,
        such as an EOS behind, has no place in a conversation.)"""
        bos = self.tokenizer.bos_token_id
        adds_bos = bos is not None and self.tokenizer("a")["input_ids"][:1] == [bos]
        return [bos] if adds_bos and ids[:1] != [bos] else []

    def _end_markers(self) -> list[int]:
        """The special token with which the template ends an assistant's turn, if there is one."""
        turn: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _PROBE}]
        try:
            text = self.prompt(turn, answer_follows=False)
        except UserError:  # a template may refuse a probe that no user typed
            return []
        after = text.rpartition(_PROBE)[2]
        ids = self.tokenizer(after.lstrip(), add_special_tokens=False)["input_ids"] if after.strip() else []
        special = set(self.tokenizer.all_special_ids) | set(self.tokenizer.added_tokens_decoder)
        return ids[:1] if ids and ids[0] in special else []

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text for people: special tokens left out, spaces as they are."""
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def text(self, token_ids: Sequence[int]) -> str:
        """Text as the target sees it, special tokens included."""
        text: str = self.tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def token_text(self, token_id: int) -> str:
        """One token as text, for labels; remembered, because trees show the same tokens again and again."""
        text = self._token_texts.get(token_id)
        if text is None:
            text = self._token_texts[token_id] = self.text([token_id])
        return text
