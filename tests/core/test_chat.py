from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagle_chat.core.chat import Chat, Message
from eagle_chat.core.errors import UserError
from eagle_chat.core.templates import FSCHAT_FAMILIES
from tests.words import byte_fallback, byte_level

TURNS: list[Message] = [
    {"role": "user", "content": "u1"},
    {"role": "assistant", "content": "a1"},
    {"role": "user", "content": "u2"},
]
WITH_SYSTEM: list[Message] = [{"role": "system", "content": "Be brief."}, *TURNS]

LLAMA_3 = (
    "{{ '<|begin_of_text|>' }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' "
    "+ m['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
LLAMA_3_TOKENS = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")
CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def llama_3(adds: str = "bos") -> Any:
    return byte_level(LLAMA_3_TOKENS, "<|begin_of_text|>", "<|end_of_text|>", adds, LLAMA_3)


def chatml() -> Any:
    return byte_level(CHATML_TOKENS, None, "<|im_end|>", "", CHATML)


def mistral(adds: str = "bos") -> Any:
    return byte_level(adds=adds, template=MISTRAL)


def llama_2(adds: str = "bos") -> Any:
    return byte_level(adds=adds)


def written(chat: Chat, messages: list[Message]) -> str:
    """The conversation as the target sees it, from its token ids."""
    return chat.text(chat.encode(messages))


def test_llama_3() -> None:
    assert written(Chat(llama_3()), TURNS) == (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nu1<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\na1<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nu2<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert written(Chat(llama_3()), WITH_SYSTEM).startswith(
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user"
    )


def test_chatml() -> None:
    assert written(Chat(chatml()), WITH_SYSTEM) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nu1<|im_end|>\n<|im_start|>assistant\na1<|im_end|>\n"
        "<|im_start|>user\nu2<|im_end|>\n<|im_start|>assistant\n"
    )
    assert written(Chat(chatml()), TURNS).startswith("<|im_start|>user\nu1")


def test_mistral() -> None:
    assert written(Chat(mistral()), TURNS) == "<s>[INST] u1 [/INST] a1</s>[INST] u2 [/INST]"


VICUNA_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)


@pytest.mark.parametrize(
    ("family", "messages", "expected"),
    [
        ("vicuna", TURNS, f"<s>{VICUNA_SYSTEM} USER: u1 ASSISTANT: a1</s>USER: u2 ASSISTANT:"),
        ("vicuna", WITH_SYSTEM, "<s>Be brief. USER: u1 ASSISTANT: a1</s>USER: u2 ASSISTANT:"),
        ("vicuna", TURNS[:1], f"<s>{VICUNA_SYSTEM} USER: u1 ASSISTANT:"),
        ("llama-2", TURNS, "<s>[INST] u1 [/INST] a1 </s><s>[INST] u2 [/INST]"),
        (
            "llama-2",
            WITH_SYSTEM,
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nu1 [/INST] a1 </s><s>[INST] u2 [/INST]",
        ),
        ("llama-2", TURNS[:1], "<s>[INST] u1 [/INST]"),
        ("mistral", TURNS, "<s>[INST] u1 [/INST] a1</s>[INST] u2 [/INST]"),
        (
            "zephyr",
            WITH_SYSTEM,
            "<s><|system|>\nBe brief.</s>\n<|user|>\nu1</s>\n<|assistant|>\na1</s>\n<|user|>\nu2</s>\n<|assistant|>\n",
        ),
    ],
)
def test_families_without_a_template_of_their_own(family: str, messages: list[Message], expected: str) -> None:
    chat = Chat(llama_2(), template=family)
    assert written(chat, messages) == expected
    # One BOS in front; Llama-2 has one more before each later turn, which is that family's format.
    assert chat.encode(messages).count(256) == 1 + expected.count("</s><s>")


@pytest.mark.parametrize("adds", ["", "bos", "both", "eos"])
@pytest.mark.parametrize("make", [llama_3, mistral])
def test_a_bos_of_the_template_stays_the_only_one(make: Any, adds: str) -> None:
    chat = Chat(make(adds))
    ids = chat.encode(TURNS)
    assert ids[0] == chat.tokenizer.bos_token_id
    assert ids.count(chat.tokenizer.bos_token_id) == 1


@pytest.mark.parametrize(("adds", "expected"), [("", 0), ("bos", 1), ("both", 1), ("eos", 0)])
def test_a_template_without_bos_gets_the_tokenizers(adds: str, expected: int) -> None:
    """And never the EOS that some tokenizers put behind a text: the answer would begin after the end."""
    chat = Chat(byte_level(("<s>", "</s>", "<|im_start|>", "<|im_end|>"), "<s>", "</s>", adds, CHATML))
    ids = chat.encode(TURNS)
    assert ids.count(256) == expected
    assert ids.count(257) == 0
    assert written(chat, TURNS).startswith("<s><|im_start|>user" if expected else "<|im_start|>user")


def test_a_tokenizer_without_bos_gets_none() -> None:
    ids = Chat(chatml()).encode(TURNS)
    assert ids[0] == Chat(chatml()).tokenizer.convert_tokens_to_ids("<|im_start|>")


def test_a_user_who_types_the_marker_gets_no_bos_less() -> None:
    chat = Chat(
        byte_level(("<s>", "</s>", "<|im_start|>", "<|im_end|>"), "<s>", "</s>", "bos", "{{ messages[0].content }}")
    )
    assert chat.encode([{"role": "user", "content": "hi"}])[0] == 256
    assert chat.encode([{"role": "user", "content": "x<s>"}])[0] == 256


def test_stop_ids_are_those_of_everyone() -> None:
    """Of the generation config, the tokenizer, and the end marker of the template."""
    chat = Chat(llama_3(), stop_ids=[5, 257])
    eot = chat.tokenizer.convert_tokens_to_ids("<|eot_id|>")
    assert chat.stop_ids == {5, 257, eot}
    assert chat.tokenizer.eos_token_id == 257 != eot


def test_the_end_marker_is_found_without_a_generation_config() -> None:
    tokenizer = byte_level(CHATML_TOKENS, None, "<|endoftext|>", "", CHATML)
    marker = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert Chat(tokenizer).stop_ids == {256, marker}
    assert Chat(byte_level(CHATML_TOKENS, None, None, "", CHATML)).stop_ids == {marker}


def test_a_template_that_ends_turns_with_text_has_no_end_marker() -> None:
    template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    assert Chat(byte_level(template=template)).stop_ids == {257}
    without = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    assert Chat(byte_level(template=without)).stop_ids == {257}


@pytest.mark.parametrize("family", FSCHAT_FAMILIES)
def test_a_family_has_its_end_marker(family: str) -> None:
    special = ("<s>", "</s>", "<|im_end|>", "<|endoftext|>")
    chat = Chat(byte_level(special, "<s>", "<|endoftext|>"), template=family)
    marker = "<|im_end|>" if family == "qwen-7b-chat" else "</s>"
    assert chat.stop_ids == {special.index("<|endoftext|>") + 256, special.index(marker) + 256}


def test_no_template_at_all_says_what_to_do() -> None:
    with pytest.raises(UserError, match=r"a chat template expected.*--template.*vicuna, llama-2"):
        Chat(byte_level())


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(UserError, match=r"found 'lama-2' .*: check --template"):
        Chat(byte_level(), template="lama-2")


def test_a_template_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("{% for m in messages %}{{ m['role'] }}>{{ m['content'] }}é{% endfor %}", encoding="utf-8")
    assert written(Chat(byte_level(), template=str(file)), TURNS) == "user>u1éassistant>a1éuser>u2é"


def test_a_template_that_refuses_a_conversation_says_why() -> None:
    chat = Chat(mistral())
    with pytest.raises(UserError, match="Only user and assistant roles are supported!"):
        chat.encode([{"role": "tool", "content": "x"}, *TURNS])


def test_a_broken_template_is_the_users_to_know() -> None:
    chat = Chat(byte_level(template="{% for m in messages %}{{ m.content }}"))
    with pytest.raises(UserError, match="refuses the conversation"):
        chat.encode(TURNS)


@pytest.mark.parametrize("text", ["a , b", "  lead", "x\n    if a :\n", "[INST] hi [/INST]", "😀 é 你好", "don 't ."])
def test_text_survives_the_way_to_ids_and_back(text: str) -> None:
    chat = Chat(byte_level(template="{{ messages[0].content }}"))
    ids = chat.encode([{"role": "user", "content": text}])
    assert chat.decode(ids) == chat.text(ids) == text


def test_special_tokens_are_no_text_for_people() -> None:
    chat = Chat(chatml())
    ids = chat.encode(TURNS)
    assert chat.decode(ids) == "user\nu1\nassistant\na1\nuser\nu2\nassistant\n"
    assert "<|im_start|>" in chat.text(ids)
    marker = chat.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert chat.token_text(marker) == "<|im_end|>"
    assert chat.token_text(ord("a")) == chat.token_text(ord("a")) == "a"


def test_spaces_of_a_sentencepiece_tokenizer_are_kept() -> None:
    chat = Chat(byte_fallback(), template="vicuna")
    ids = chat.tokenizer.convert_tokens_to_ids(["▁Hello", "▁", ",", "▁a", "▁▁", "▁a"])
    assert chat.decode(ids) == "Hello , a   a"


@pytest.mark.parametrize("make", [llama_3, mistral, chatml])
def test_ids_with_offsets_are_the_ids_and_their_places(make: Any) -> None:
    chat = Chat(make())
    text = chat.prompt(TURNS, answer_follows=False)
    ids, offsets = chat.encode_with_offsets(text)
    assert ids == chat.encode_text(text)
    assert "".join(text[start:end] for start, end in offsets) == text
    bare = Chat(byte_level(("<s>", "</s>"), "<s>", "</s>", "bos", "{{ messages[0].content }}"))
    ids, offsets = bare.encode_with_offsets("hi")
    assert (ids, offsets) == ([256, *b"hi"], [(0, 0), (0, 1), (1, 2)])
