"""Answers in channels, as gpt-oss gives them: the reference strings follow the public description of the format."""

from __future__ import annotations

import pytest

from eagle_chat.cli.thinking import hiding
from eagle_chat.core.chat import Chat, Message
from eagle_chat.core.events import Committed, Event, Finished
from eagle_chat.core.stopping import Stopper
from tests.templates import FORMATS, source
from tests.words import byte_level

QUESTION: list[Message] = [{"role": "user", "content": "What is 2 + 2?"}]
ANALYSIS = "<|channel|>analysis<|message|>Simple arithmetic: 2 + 2 = 4. 😀<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>2 + 2 = 4."
SHOWN = "<think>\nSimple arithmetic: 2 + 2 = 4. 😀\n</think>\n\n2 + 2 = 4."


@pytest.fixture
def chat() -> Chat:
    wanted = FORMATS["harmony"]
    special = (*wanted.special, "<|constrain|>", "<|call|>")
    return Chat(byte_level(special, wanted.bos, wanted.eos, "", source("harmony")))


def ids(chat: Chat, text: str) -> list[int]:
    return chat.encode_text(text)


def shown(chat: Chat, answer: str, prompt: str | None = None) -> str:
    """The text of an answer, token by token, behind a prompt."""
    given = chat.encode(QUESTION) if prompt is None else ids(chat, prompt)
    text = chat.detokenizer(given)
    return "".join([*map(text.feed, ids(chat, answer)), text.flush()])


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (ANALYSIS + FINAL, SHOWN),
        ("<|channel|>final<|message|>Four.", "Four."),
        (ANALYSIS, SHOWN.partition("\n</think>")[0]),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>" + FINAL,
         "<think>\na\nb\n</think>\n\n2 + 2 = 4."),
        ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>", "<think>\n{}"),
        ("<|channel|>analysis", ""),
        ("It names no channel.", "It names no channel."),
    ],
)  # fmt: skip
def test_text_of_an_answer(chat: Chat, answer: str, expected: str) -> None:
    assert shown(chat, answer) == expected
    assert chat.decode(ids(chat, answer)) == expected


def test_an_answer_that_goes_on_is_the_same_text(chat: Chat) -> None:
    """Cut anywhere behind its first header: inside the reasoning, a header, a character or the final message."""
    answer = ids(chat, ANALYSIS + FINAL)
    first = ids(chat, ANALYSIS).index(chat.tokenizer.convert_tokens_to_ids("<|message|>")) + 1
    last = len(ids(chat, ANALYSIS))
    for cut in range(first, len(answer)):
        prompt = [*chat.encode(QUESTION), *answer[:cut]]
        text = chat.detokenizer(prompt)
        rest = "".join([*map(text.feed, answer[cut:]), text.flush()])
        if "\ufffd" in rest:
            continue  # half a character is nobody's text
        assert chat.decode(answer[:cut]).rstrip("\ufffd") + rest == SHOWN
        assert chat.ends_thinking(prompt) == (cut < last + len(ids(chat, FINAL.partition("2 +")[0])))


def test_history_keeps_the_final_channel_alone(chat: Chat) -> None:
    again: list[Message] = [*QUESTION, {"role": "assistant", "content": SHOWN}, {"role": "user", "content": "9 / 2?"}]
    assert chat.prompt(again) == (
        "<|start|>user<|message|>What is 2 + 2?<|end|>"
        "<|start|>assistant<|channel|>final<|message|>2 + 2 = 4.<|end|>"
        "<|start|>user<|message|>9 / 2?<|end|><|start|>assistant"
    )
    again[1]["content"] = "<think>\nnever fini"
    assert "<|channel|>final<|message|><|end|>" in chat.prompt(again)


def test_the_end_of_the_reasoning_does_not_end_the_answer(chat: Chat) -> None:
    end, call = (chat.tokenizer.convert_tokens_to_ids(mark) for mark in ("<|end|>", "<|return|>"))
    assert end not in chat.stop_ids
    assert call in chat.stop_ids
    stopper = Stopper(chat.detokenizer(chat.encode(QUESTION)), chat.stop_ids, ["4."], 999, 999)
    cut = stopper.offer(ids(chat, ANALYSIS + FINAL + "<|return|>"))
    assert (cut.text, cut.reason) == (SHOWN.partition("4.")[0], "stop")  # stop strings look at what is shown


def test_a_template_that_ends_every_message_alike() -> None:
    template = (
        "{% for m in messages %}<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content }}<|end|>{% endfor %}"
    )
    wanted = FORMATS["harmony"]
    chat = Chat(byte_level(wanted.special, wanted.bos, "<|return|>", "", template))
    assert chat.stop_ids == {chat.tokenizer.convert_tokens_to_ids("<|return|>")}


def test_the_reasoning_can_be_hidden(chat: Chat) -> None:
    seen: list[Event] = []
    take = hiding(seen.append, chat.opens_thinking)
    text = chat.detokenizer(chat.encode(QUESTION))
    for cycle, token in enumerate(ids(chat, ANALYSIS + FINAL)):
        piece = text.feed(token)
        take(Committed(cycle, [token], ["target"], piece, 1, 0, {}, pieces=[piece]))
    take(Finished("stop", text.flush(), 1, 1))
    assert "".join(event.text for event in seen if isinstance(event, Committed | Finished)) == "2 + 2 = 4."


def test_other_templates_have_no_channels() -> None:
    """Marks in the vocabulary are not enough: the template must write them."""
    wanted = FORMATS["harmony"]
    chat = Chat(byte_level(wanted.special, wanted.bos, wanted.eos, "", source("qwen3")))
    assert chat.decode(ids(chat, "<|channel|>analysis<|message|>a")) == "analysisa"
