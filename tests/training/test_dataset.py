"""Loss masks exact for every family, truncation, division and batches."""

from __future__ import annotations

import functools
import itertools
import string
from collections import Counter

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from eagle_chat.core.chat import Chat, Message
from eagle_chat.core.errors import UserError
from eagle_chat.training.conversations import Conversation
from eagle_chat.training.dataset import batches, samples, split, tokenize
from tests.training.families import CHATML, LLAMA2, THINKING, family

TWO_TURNS = Conversation(
    (
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "Paris, (a city)\n\nassistant said 😀."},
        {"role": "user", "content": "assistant: Hello?"},
        {"role": "assistant", "content": "Hello."},
    )
)
ENDS = {"chatml": "<|im_end|>", "llama-3": "<|eot_id|>", "llama-2": " </s>", "vicuna": "</s>"}
LEADS = {"llama-2": " ", "vicuna": " "}


def masked_texts(name: str, conversation: Conversation) -> list[str]:
    """The text of every stretch of assistant tokens."""
    chat = family(name)
    texts = []
    for sample in tokenize(conversation, chat):
        run: list[int] = []
        for token, own in zip(sample.tokens.tolist(), sample.mask.tolist(), strict=True):
            if own:
                run.append(token)
            elif run:
                texts.append(chat.text(run))
                run = []
        if run:
            texts.append(chat.text(run))
    return texts


@pytest.mark.parametrize("name", ["chatml", "llama-3", "llama-2", "vicuna"])
def test_mask_is_exactly_the_answers_with_their_end_markers(name: str) -> None:
    answers = [turn["content"] for turn in TWO_TURNS.messages if turn["role"] == "assistant"]
    expected = [LEADS.get(name, "") + answer + ENDS[name] for answer in answers]
    found = masked_texts(name, TWO_TURNS)
    assert [text.strip() for text in found] == [text.strip() for text in expected]


@pytest.mark.parametrize("name", ["chatml", "llama-3", "llama-2", "vicuna"])
def test_tokens_are_those_of_the_whole_text_and_of_the_prompt(name: str) -> None:
    chat = family(name)
    (sample,) = tokenize(TWO_TURNS, chat)
    first = int(np.flatnonzero(sample.mask)[0])
    assert sample.tokens[:first].tolist() == chat.encode(list(TWO_TURNS.messages[:1]))
    assert sample.tokens.tolist() == chat.encode_text(chat.prompt(list(TWO_TURNS.messages), answer_follows=False))
    if chat.tokenizer.bos_token_id is not None and name != "llama-2":  # Llama-2's template has one for every turn
        assert (sample.tokens == chat.tokenizer.bos_token_id).sum() == 1


def test_answers_rendered_differently_later_give_a_sample_each() -> None:
    thinking = Conversation(
        (
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "<think>hm</think>fine"},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "<think>well</think>thank you"},
        )
    )
    found = list(tokenize(thinking, family("thinking")))
    assert len(found) == 2
    chat = family("thinking")
    assert [chat.text(sample.tokens[sample.mask].tolist()) for sample in found] == [
        "hm</think>fine<|im_end|>",
        "well</think>thank you<|im_end|>",
    ]


def test_an_answer_that_was_cut_has_no_end_marker() -> None:
    cut = Conversation(TWO_TURNS.messages, ended=False)
    chat = family("chatml")
    (sample,) = tokenize(cut, chat)
    assert chat.text(sample.tokens.tolist()).endswith("Hello.")
    assert sample.mask[-1]


@pytest.mark.parametrize("answer", ["A", "7", "Aq7", "Zw3", "x", "#x0", " ", "a b\n", "Az3#0"])
def test_answers_that_look_like_probes(answer: str) -> None:
    conversation = Conversation(({"role": "user", "content": "A"}, {"role": "assistant", "content": answer}))
    assert masked_texts("chatml", conversation) == [answer + "<|im_end|>"]


LLAMA2_UNTRIMMED = LLAMA2.replace("m.content | trim", "m.content")
ODD = ["  indented", "\n\nx", " ", "x\n\n", "x  ", "\n", "plain", "\n  x\n  ", " x", "x \n"]


@functools.cache
def merging(template: str, spaced: bool) -> Chat:
    """A tokenizer that joins spaces and line ends wherever they meet. A `spaced` one puts a space before any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if spaced:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()])
        alphabet = [*string.printable]
    trainer = trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["\n\n  \n  \n\n \n " * 9, "a\n    b\n    c", "d  e\n f"] * 9, trainer)
    tokenizer.add_special_tokens(["<s>", "</s>", "<|im_start|>", "<|im_end|>"])
    eos = "</s>" if template == LLAMA2_UNTRIMMED else "<|im_end|>"
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token=eos, chat_template=template,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
    return Chat(fast)


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize(
    ("template", "spaced"),
    [(CHATML, False), (LLAMA2_UNTRIMMED, False), (THINKING, False), (CHATML, True)],
    ids=["chatml", "llama-2", "thinking", "spaced"],
)
def test_the_tokens_trained_on_are_those_an_engine_meets(template: str, spaced: bool, ended: bool) -> None:
    """Before each answer the tokens of its prompt; from there to its end marker, every one bears loss, or none."""
    chat = merging(template, spaced)
    end = chat.tokenizer.eos_token
    merged = whole = 0
    for first, last in itertools.product(ODD, ODD):
        messages: list[Message] = []
        for answer in (first, last):
            messages += [{"role": "user", "content": "Go on"}, {"role": "assistant", "content": answer}]
        refused: Counter[str] = Counter()
        runs = 0
        found = list(tokenize(Conversation(tuple(messages), ended), chat, refused))
        for sample in found:
            padded = np.concatenate([[False], sample.mask, [False]])
            starts, stops = (np.flatnonzero(np.diff(padded.astype(int)) == sign) for sign in (1, -1))
            for start, stop in zip(starts, stops, strict=True):
                before = chat.text(sample.tokens[:start].tolist())
                told = messages[:3] if before.count("Go on") == 2 else messages[:1]
                prompt, text = chat.prompt(told), chat.prompt(messages[: len(told) + 1], answer_follows=False)
                if text.startswith(prompt):
                    assert sample.tokens[:start].tolist() == chat.encode(told)
                run = chat.text(sample.tokens[start:stop].tolist())
                if ended or len(told) == 1:
                    assert text[len(before) :].startswith(run)
                    assert run.endswith(end)
                else:
                    assert text[len(before) :].rpartition(end)[0].startswith(run)
                runs += 1
        if not ended and not refused:  # nothing of what the template writes behind the last answer
            text = chat.prompt(messages, answer_follows=False)
            stem = text[: text.rindex(" </s>" if template == LLAMA2_UNTRIMMED else end)]
            assert stem.startswith(chat.text(found[-1].tokens.tolist()))
        merged, whole = merged + refused.total(), whole + runs
        assert runs + refused.total() == 2 or not ended
    assert whole > 50
    assert (merged > 0) == (spaced or template == THINKING)


def test_cut_before_any_assistant_token_contributes_nothing() -> None:
    chat = family("chatml")
    (whole,) = tokenize(TWO_TURNS, chat)
    first = int(np.flatnonzero(whole.mask)[0])
    assert list(samples([TWO_TURNS], chat, first)) == []
    (short,) = samples([TWO_TURNS], chat, first + 1)
    assert short.mask.sum() == 1
    assert len(short) == first + 1


def test_a_question_is_on_one_side_only() -> None:
    chat = family("chatml")

    def conversation(number: int) -> Conversation:
        return Conversation(
            ({"role": "user", "content": f"Question {number}?"}, {"role": "assistant", "content": "Yes."})
        )

    found = list(samples(map(conversation, range(200)), chat, 512))
    divided = split([*found, *found], 0.2)
    names = {sample.name for sample in divided.train}
    assert not names & {sample.name for sample in divided.validation}
    assert 15 < len(divided.validation) / 2 < 70
    again = split(found[50:], 0.2)
    assert {sample.name for sample in again.validation} <= {sample.name for sample in divided.validation}


def test_nothing_to_train_on_is_an_error() -> None:
    with pytest.raises(UserError, match="none: check the data"):
        split([], 0.1)


def test_batches_hold_every_sample_once_within_the_budget() -> None:
    lengths = np.random.default_rng(0).integers(5, 90, 300).tolist()
    plan = batches(lengths, 400, seed=1, epoch=0)
    assert sorted(number for batch in plan for number in batch) == list(range(300))
    assert all(max(lengths[number] for number in batch) * len(batch) <= 400 or len(batch) == 1 for batch in plan)
    padding = sum(max(lengths[n] for n in batch) * len(batch) for batch in plan) / sum(lengths)
    assert padding < 1.15
    assert plan == batches(lengths, 400, seed=1, epoch=0)
    assert plan != batches(lengths, 400, seed=1, epoch=1)
