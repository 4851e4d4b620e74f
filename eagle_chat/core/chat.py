"""From a conversation to token ids and back: the tokenizer's own template first, a named family's where it has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eagle_chat.core import thinking as reasoning
from eagle_chat.core.channels import ChannelDetokenizer, marks_of
from eagle_chat.core.detokenizer import Detokenizer, PlainDecoder, TextSource
from eagle_chat.core.errors import UserError
from eagle_chat.core.templates import FAMILIES, FSCHAT_FAMILIES, Message, folded, fschat_prompt, jinja_source

__all__ = ["Chat", "Message"]

_PROBE = "eagle-chat-probe"
_SWITCHES = ("enable_thinking", "thinking")
"""Names under which templates are told whether the model shall think."""


class Chat:
    """A tokenizer with its template and stop ids."""

    def __init__(
        self, tokenizer: Any, stop_ids: Sequence[int] = (), template: str | None = None, thinking: bool | None = None
    ) -> None:
        """`stop_ids`: those of the generation config. `template`: a family, or a file with a Jinja template.
        `thinking`: whether a model that can be told shall think; None leaves it to its template."""
        self.tokenizer = tokenizer
        self._family = template if template in FSCHAT_FAMILIES else None
        self._token_texts: dict[int, str] = {}
        if template is not None and self._family is None:
            tokenizer.chat_template = jinja_source(template)
        elif template is None and not tokenizer.chat_template:
            raise UserError(
                f"a chat template expected in {tokenizer.name_or_path}, found none: give --template with a file or "
                f"one of {', '.join(FAMILIES)}"
            )
        self._plain = PlainDecoder(tokenizer)
        self._channels = marks_of(tokenizer, self._source())
        self._switches = self._thinking_switches(thinking)
        self._folds_system = self._lacks_system_role()
        eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self.stop_ids = frozenset([*stop_ids, *eos, *self._end_markers()])

    def _thinking_switches(self, thinking: bool | None) -> dict[str, bool]:
        if thinking is None:
            return {}
        known = [name for name in _SWITCHES if name in self._source()]
        if not known:
            raise UserError(
                "a chat template that can be told whether to think expected, found none: leave --thinking out"
            )
        return dict.fromkeys(known, thinking)

    def _source(self) -> str:
        """The Jinja text that is used; empty for a family of fschat's."""
        return "" if self._family is not None else str(self.tokenizer.chat_template)

    def _lacks_system_role(self) -> bool:
        """Whether the template refuses a system message, or leaves it out without a word."""
        question: Message = {"role": "user", "content": "a"}
        try:
            return _PROBE not in self._render([{"role": "system", "content": _PROBE}, question], True)
        except UserError:
            pass
        try:
            self._render([question], True)
        except UserError:  # then the system message was not the reason
            return False
        return True

    @property
    def opens_thinking(self) -> bool:
        """Whether an answer begins inside the reasoning, because the prompt has opened it already."""
        return self.prompt([{"role": "user", "content": "a"}]).rstrip().endswith(reasoning.OPEN)

    def ends_thinking(self, token_ids: Sequence[int]) -> bool:
        """Whether a prompt or an answer ends inside a reasoning."""
        if self._channels is not None:
            return ChannelDetokenizer(self._plain, self._channels, token_ids).thinking
        return reasoning.ends_inside(self.text(token_ids))

    def prompt(self, messages: Sequence[Message], answer_follows: bool = True) -> str:
        """The conversation as the target wants to read it, up to where its answer begins.

        Without `answer_follows`: as it stands, with the last turn's end marker, the way training text is rendered.
        System text goes before the first question where the family has no place for it.
        """
        return self._render(folded(messages) if self._folds_system else messages, answer_follows)

    def _render(self, messages: Sequence[Message], answer_follows: bool) -> str:
        if self._family is not None:
            return fschat_prompt(self._family, messages, answer_follows)
        try:
            text: str = self.tokenizer.apply_chat_template(
                [self._told(message) for message in messages],
                tokenize=False,
                add_generation_prompt=answer_follows,
                **self._switches,
            )
        except Exception as error:  # a template raises whatever its author chose
            raise UserError(f"this model's chat template refuses the conversation: {error}") from error
        return text

    def _told(self, message: Message) -> dict[str, str]:
        """A message as the template wants it: reasoning apart where it asks for that, and left out where it has
        channels. (Those that look for </think> themselves get the whole text.)"""
        told = {"role": message["role"], "content": message["content"]}
        if message["role"] == "assistant" and self._channels is not None:
            unfinished = reasoning.ends_inside(message["content"])
            told["content"] = "" if unfinished else reasoning.split(message["content"])[1]
        elif message["role"] == "assistant" and "reasoning_content" in self._source():
            thought, told["content"] = reasoning.split(message["content"])
            if thought is not None:
                told["reasoning_content"] = thought
        return told

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
        """The special token with which the template ends an assistant's turn, if there is one. (With channels a turn is
        several messages, and what ends one of them does not end the turn.)"""
        turn: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _PROBE}]
        try:
            text = self.prompt(turn, answer_follows=False)
        except UserError:  # a template may refuse a probe that no user typed
            return []
        after = text.rpartition(_PROBE)[2]
        ids = self.tokenizer(after.lstrip(), add_special_tokens=False)["input_ids"] if after.strip() else []
        special = set(self.tokenizer.all_special_ids) | set(self.tokenizer.added_tokens_decoder)
        if self._channels is not None:
            special.discard(self._channels.end)
        return ids[:1] if ids and ids[0] in special else []

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text for people, of a whole answer: special tokens left out, spaces as they are, channels as reasoning."""
        if self._channels is None:
            return self._plain.decode(token_ids)
        source = self.detokenizer()
        return "".join([*map(source.feed, token_ids), source.flush()])

    def detokenizer(self, prompt: Sequence[int] = ()) -> TextSource:
        """What turns the tokens of an answer to `prompt` into text, one by one."""
        if self._channels is None:
            return Detokenizer(self._plain)
        return ChannelDetokenizer(self._plain, self._channels, prompt)

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
