"""Small tokenizers with the templates of several families, for tests of training text."""

from __future__ import annotations

import functools
import string

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from eagle_chat.core.chat import Chat

CHATML = (
    "{% for m in messages %}"
    "{% if loop.first and m.role != 'system' %}<|im_start|>system\nBe kind<|im_end|>\n{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}"
    "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content | trim + ' [/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content | trim + ' ' + eos_token }}{% endif %}{% endfor %}"
)
# Forgets what earlier answers thought, and opens the prompt of an answer differently from what is kept of it.
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and not loop.last %}"
    "{{ m.content.split('</think>')[-1] | trim }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
)
CORPUS = [
    "What is the capital of France? The capital of France is Paris, a city on the river Seine.",
    "Write a short story about a dog. Once upon a time there was a dog who liked the user and the assistant.",
    "Hello, how are you? I am fine, thank you. 1 + 1 = 2, and (a, b) are letters.",
]


def _bytes_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _metaspace_bpe() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def _with_bos(tokenizer: Tokenizer, bos: str) -> None:
    tokenizer.add_special_tokens([bos])
    number = tokenizer.token_to_id(bos)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, number)])


@functools.cache
def family(name: str) -> Chat:
    """The chat of a family: chatml, llama-3, llama-2, thinking, or vicuna (no template of its own)."""
    tokenizer = _metaspace_bpe() if name in ("llama-2", "vicuna") else _bytes_bpe()
    extra = {
        "chatml": ["<|im_start|>", "<|im_end|>"],
        "thinking": ["<|im_start|>", "<|im_end|>", "<think>", "</think>"],
        "llama-3": ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>"],
    }.get(name, ["</s>"])
    tokenizer.add_special_tokens(extra)
    if name == "llama-3":
        _with_bos(tokenizer, "<|begin_of_text|>")
    elif name in ("llama-2", "vicuna"):
        _with_bos(tokenizer, "<s>")
    bos = {"llama-3": "<|begin_of_text|>", "llama-2": "<s>", "vicuna": "<s>"}.get(name)
    eos = {"chatml": "<|im_end|>", "thinking": "<|im_end|>", "llama-3": "<|end_of_text|>"}.get(name, "</s>")
    template = {"chatml": CHATML, "llama-3": LLAMA3, "llama-2": LLAMA2, "thinking": THINKING}.get(name)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos,
        eos_token=eos,
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )
    return Chat(fast, template="vicuna" if name == "vicuna" else None)


LETTERS = string.ascii_letters + string.digits + " \n.,?!'-:;()+=*/#@%&<>_\"$[]{}|~"
"""What the tiny targets can say: with the special tokens 97 in all."""


@functools.cache
def letters_chat() -> Chat:
    """One token a character, 97 in all: 0 padding, 1 and 2 the marks of a turn, 3 unknown."""
    words = {"<pad>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "<unk>": 3}
    for letter in LETTERS:
        words.setdefault(letter, len(words))
    assert len(words) == 97
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<pad>", "<|im_start|>", "<|im_end|>"])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<pad>", unk_token="<unk>",
        chat_template=CHATML.replace("Be kind", "Hi"), clean_up_tokenization_spaces=False,
    )  # fmt: skip
    return Chat(fast)
