"""What each family of the table gets to read: reference strings, BOS, system text, end markers, reasoning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagle_chat.core import registry
from eagle_chat.core.chat import Chat, Message
from eagle_chat.core.errors import UserError
from eagle_chat.core.templates import AUTHORS, FAMILIES, folded, jinja_source, system_text
from tests.templates import FORMATS, source
from tests.words import byte_level

TURNS: list[Message] = [
    {"role": "user", "content": "u1"},
    {"role": "assistant", "content": "a1"},
    {"role": "user", "content": "u2"},
]
WITH_SYSTEM: list[Message] = [{"role": "system", "content": "Be brief."}, *TURNS]


def chat_of(name: str, own_template: bool, **options: Any) -> Chat:
    """The chat of a family, by the tokenizer's own template or by naming the family."""
    wanted = FORMATS[name]
    adds = "bos" if wanted.adds_bos else ""
    template = source(name) if own_template else None
    tokenizer = byte_level(wanted.special, wanted.bos, wanted.eos, adds, template)
    return Chat(tokenizer, template=None if own_template else wanted.family, **options)


CASES = [(name, True) for name in FORMATS if source(name)] + [(name, False) for name in FORMATS if FORMATS[name].family]


def test_every_family_of_the_table_has_its_reference() -> None:
    assert {entry.family for entry in registry.entries().values()} <= set(FORMATS)
    assert {entry.template for entry in registry.entries().values()} - {None} <= set(FAMILIES)


@pytest.mark.parametrize(("name", "own"), CASES)
def test_two_turns_are_the_reference(name: str, own: bool) -> None:
    chat, wanted = chat_of(name, own), FORMATS[name]
    for messages, expected in ((TURNS, wanted.turns), (WITH_SYSTEM, wanted.with_system)):
        ids = chat.encode(messages)
        assert chat.text(ids) == expected
        if wanted.bos is not None:
            # Llama 2 opens every later turn with one more, and harmony begins with another marker.
            times = {"llama-2": 2, "harmony": 0}.get(name, 1)
            assert ids.count(chat.tokenizer.bos_token_id) == times


@pytest.mark.parametrize(("name", "own"), CASES)
def test_the_end_marker_stops_and_is_not_shown(name: str, own: bool) -> None:
    chat, wanted = chat_of(name, own), FORMATS[name]
    marker = chat.tokenizer.convert_tokens_to_ids(wanted.end)
    assert marker in chat.stop_ids
    assert chat.decode([*b"a", marker]) == "a"
    end_of_reasoning = chat.tokenizer.convert_tokens_to_ids("<|end|>") if name == "harmony" else None
    assert end_of_reasoning not in chat.stop_ids


@pytest.mark.parametrize("name", ["mistral", "gemma"])
def test_a_system_message_alone_still_reaches_the_model(name: str) -> None:
    """Where it is folded, and whatever follows it."""
    chat = chat_of(name, own_template=True)
    assert "Be brief." in chat.prompt(WITH_SYSTEM[:1])
    assert chat.prompt([{"role": "system", "content": " "}, *TURNS]) == chat.prompt(TURNS)


def test_a_template_that_drops_the_system_text_gets_it_folded() -> None:
    template = (
        "{% for m in messages %}{% if m.role != 'system' %}{{ m.role + ':' + m.content + ';' }}{% endif %}{% endfor %}"
    )
    chat = Chat(byte_level(template=template))
    assert chat.prompt(WITH_SYSTEM) == "user:Be brief.\n\nu1;assistant:a1;user:u2;"


def test_folding_changes_nothing_else() -> None:
    assert folded(TURNS) == TURNS
    assert folded([]) == []
    before = [dict(message) for message in WITH_SYSTEM]
    folded(WITH_SYSTEM)
    assert before == WITH_SYSTEM


# The system text of the papers' runs.


def test_the_authors_system_text_by_family() -> None:
    for family in ("llama-2", "llama-3"):
        text = system_text(AUTHORS, family)
        assert text is not None
        assert text.startswith("You are a helpful, respectful and honest assistant. Always answer")
        assert text.endswith("please don't share false information.")
    assert system_text(AUTHORS, "vicuna") is None
    assert system_text("Be brief.", None) == "Be brief."
    for other in ("qwen3", None):
        with pytest.raises(UserError, match="@authors"):
            system_text(AUTHORS, other)


# Models that think.


THOUGHT: list[Message] = [TURNS[0], {"role": "assistant", "content": "<think>\nwhy\n</think>\n\na1"}, TURNS[2]]


@pytest.mark.parametrize(
    ("thinking", "end"),
    [(None, "assistant\n"), (True, "assistant\n"), (False, "assistant\n<think>\n\n</think>\n\n")],
)
def test_a_model_that_can_be_told_is_told(thinking: bool | None, end: str) -> None:
    chat = chat_of("qwen3", own_template=True, thinking=thinking)
    assert chat.prompt(TURNS).endswith(end)
    assert not chat.opens_thinking


@pytest.mark.parametrize("name", ["vicuna", "chatml"])
def test_a_model_that_cannot_be_told_says_so(name: str) -> None:
    with pytest.raises(UserError, match="leave --thinking out"):
        chat_of(name, own_template=False, thinking=True)


@pytest.mark.parametrize("name", ["qwen3", "deepseek-r1"])
def test_earlier_reasoning_is_left_to_the_template(name: str) -> None:
    """One wants it in a field of its own, the other cuts it off; neither repeats it."""
    chat = chat_of(name, own_template=True)
    assert chat.prompt(THOUGHT).replace("\n\na1", "a1") == chat.prompt(TURNS)


def test_reasoning_reaches_a_template_that_keeps_it() -> None:
    template = (
        "{% for m in messages %}{{ m.role + ':' + (m.reasoning_content or '-') + ':' + m.content + ';' }}{% endfor %}"
    )
    chat = Chat(byte_level(template=template))
    assert chat.prompt(THOUGHT) == "user:-:u1;assistant:why:a1;user:-:u2;"
    silent = Chat(byte_level(template="{% for m in messages %}{{ m.content + ';' }}{% endfor %}"))
    assert silent.prompt(THOUGHT) == "u1;<think>\nwhy\n</think>\n\na1;u2;"


def test_a_prompt_that_opens_the_reasoning_is_noticed() -> None:
    assert chat_of("deepseek-r1", own_template=True).opens_thinking


# Files.


def test_a_file_that_cannot_be_a_template(tmp_path: Path) -> None:
    file = tmp_path / "x.jinja"
    file.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(UserError, match="it is not UTF-8 text"):
        jinja_source(str(file))
    with pytest.raises(UserError, match=r"one of vicuna, llama-2, .*chatml, llama-3, gemma expected, found 'lama-2'"):
        jinja_source("lama-2")
    with pytest.raises(UserError, match="check --template"):
        jinja_source(str(tmp_path))
