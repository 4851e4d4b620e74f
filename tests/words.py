"""Small real tokenizers: one token a byte, in the two ways in which models spell bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode


def byte_level(
    special: Sequence[str] = ("<s>", "</s>"),
    bos: str | None = "<s>",
    eos: str | None = "</s>",
    adds: str = "",
    template: str | None = None,
) -> Any:
    """A byte-level BPE without merges: ids 0 to 255 are the bytes, then the special tokens.

    `adds`: what the tokenizer itself puts around a text, "bos", "eos", "both" or nothing.
    """
    tokenizer = Tokenizer(models.BPE({bytes_to_unicode()[byte]: byte for byte in range(256)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _wrapped(tokenizer, special, bos, eos, adds, template)


def byte_fallback(words: Sequence[str] = ("▁Hello", "▁a", "▁▁"), special: Sequence[str] = ("<s>", "</s>")) -> Any:
    """As sentencepiece does it: ids 0 to 255 are bytes for what no word spells, then the printable ASCII characters
    ("▁" is the space) and the newline, then `words`, then the special tokens."""
    letters = ["▁", *(chr(code) for code in range(33, 127)), "\n"]
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocabulary |= {word: 256 + index for index, word in enumerate([*letters, *words])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, fuse_unk=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _wrapped(tokenizer, special, "<s>", "</s>", "", None)


def _wrapped(
    tokenizer: Tokenizer, special: Sequence[str], bos: str | None, eos: str | None, adds: str, template: str | None
) -> Any:
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    if adds:
        single = ("<s> " if adds in ("bos", "both") else "") + "$A" + (" </s>" if adds in ("eos", "both") else "")
        single = single.replace("<s>", bos or "").replace("</s>", eos or "")
        ids = [(text, tokenizer.token_to_id(text)) for text in (bos, eos) if text is not None]
        tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=ids)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos, eos_token=eos)
    wrapped.chat_template = template
    return wrapped


class Plain:
    """A tokenizer as the detokenizer wants it: special tokens left out, nothing cleaned up."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._letters = tokenizer.get_vocab() if "<0x00>" in tokenizer.get_vocab() else {}

    def ids(self, text: str) -> list[int]:
        """One token a byte, or a character where the vocabulary has it."""
        pieces = [[self._letters[c]] if c in self._letters else list(c.encode()) for c in text.replace(" ", "▁")]
        return [token for piece in pieces for token in piece] if self._letters else list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text
