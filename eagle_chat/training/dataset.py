"""Conversations -> token ids and loss mask, exact for every family because the template itself is asked.

Where an answer stands is found by rendering, never by searching for markers: the prompt of an answer is a prefix of the
rendered conversation, and the conversation rendered with another answer in its place agrees with it behind the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eagle_chat.core.chat import Chat, Message
from eagle_chat.core.errors import UserError
from eagle_chat.training.conversations import Conversation, common_length, question_hash

PROBES = ("Aq7", "Zw3", "#x0")
"""Stand-ins for an answer; one is taken that shares neither its first nor its last character."""


@dataclass(frozen=True)
class Sample:
    """Token ids [T]; `mask` [T]: whether an assistant wrote it, end marker included; `name`: hash of the question."""

    tokens: npt.NDArray[np.int32]
    mask: npt.NDArray[np.bool_]
    name: str

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class _Span:
    """One answer in a rendered text: characters `start`..`stop`, and the end of what the template puts behind it.
    `prompt`: token ids of the prompt that this answer was given to, where the rendered text begins with that."""

    start: int
    stop: int
    tail: int
    prompt: tuple[int, ...] | None


@dataclass(frozen=True)
class _Tokens:
    """Token ids of a rendered text, and the characters (start, end) that each stands for."""

    ids: list[int]
    offsets: list[tuple[int, int]]


def samples(
    conversations: Iterable[Conversation], chat: Chat, max_length: int, refused: Counter[str] | None = None
) -> Iterator[Sample]:
    """Samples of at most `max_length` tokens; what holds no assistant token after the cut is left out. `refused`: see
    `tokenize`."""
    for conversation in conversations:
        for sample in tokenize(conversation, chat, refused):
            tokens, mask = sample.tokens[:max_length], sample.mask[:max_length]
            if mask.any():
                yield Sample(tokens, mask, sample.name)


def tokenize(conversation: Conversation, chat: Chat, refused: Counter[str] | None = None) -> Iterator[Sample]:
    """The whole conversation as one sample.

    Some templates render an answer differently once another turn follows (they drop what it thought), and the first
    characters of an answer (spaces, line ends) may make one token with the end of its prompt, which no engine meets
    there. Then every answer gives a sample of its own, in the tokens of its prompt and its own: that is how the target
    met it. `refused` counts answers of which these tokens cannot be told.
    """
    messages = list(conversation.messages)
    answers = [at for at, turn in enumerate(messages) if turn["role"] == "assistant"]
    whole = chat.prompt(messages, answer_follows=False)
    renders = {at: _span(messages[: at + 1], chat) for at in answers}
    if all(whole.startswith(text) for text, _ in renders.values()):
        tokens, spans = _Tokens(*chat.encode_with_offsets(whole)), [span for _, span in renders.values()]
        if not any(_merges(span, tokens) for span in spans):
            yield _sample(tokens, spans, conversation, chat, ends_at=len(messages))
            return
    for at, (text, span) in renders.items():
        own = _apart(text, span, chat)
        if own is not None:
            yield _sample(own, [span], conversation, chat, ends_at=at + 1)
        elif refused is not None:
            refused["answer that makes one token with its prompt"] += 1


def _merges(span: _Span, tokens: _Tokens) -> bool:
    """Whether the tokens before the answer are other than those of its prompt alone."""
    if span.prompt is not None:
        return tuple(tokens.ids[: len(span.prompt)]) != span.prompt
    return any(low < span.start < high for low, high in tokens.offsets)


def _apart(text: str, span: _Span, chat: Chat) -> _Tokens | None:
    """The text in tokens of which none holds both of prompt and answer. None where the two tokenized apart say
    something else than together: some tokenizers put a space in front of whatever they get."""
    tokens = _Tokens(*chat.encode_with_offsets(text))
    if not _merges(span, tokens):
        return tokens
    if span.prompt is None:
        return None
    rest = chat.tokenizer(text[span.start :], add_special_tokens=False, return_offsets_mapping=True)
    ids = [*span.prompt, *rest["input_ids"]]
    moved = [(low + span.start, high + span.start) for low, high in rest["offset_mapping"]]
    return _Tokens(ids, [(0, 0)] * len(span.prompt) + moved) if chat.text(ids) == chat.text(tokens.ids) else None


def _span(messages: list[Message], chat: Chat) -> tuple[str, _Span]:
    """The conversation up to its last answer as text, and where in it this answer stands."""
    answer = messages[-1]["content"]
    text = chat.prompt(messages, answer_follows=False)
    other = chat.prompt([*messages[:-1], Message(role="assistant", content=_probe(answer))], answer_follows=False)
    prompt = chat.prompt(messages[:-1])
    # Behind a prompt that opens differently (say, with a mark for thinking) the answer begins where the two part.
    opens_alike = text.startswith(prompt)
    start = len(prompt) if opens_alike else common_length(text, other)
    behind = common_length(text[start:][::-1], other[::-1])
    return text, _Span(start, len(text) - behind, len(text), tuple(chat.encode_text(prompt)) if opens_alike else None)


def _probe(answer: str) -> str:
    stripped = answer.strip()
    edges = {answer[:1], answer[-1:], stripped[:1], stripped[-1:]}
    return next(probe for probe in PROBES if not edges & {probe[0], probe[-1]})


def _sample(tokens: _Tokens, spans: Sequence[_Span], conversation: Conversation, chat: Chat, ends_at: int) -> Sample:
    ids = tokens.ids
    mask = np.zeros(len(ids), dtype=np.bool_)
    cut = not conversation.ended and ends_at == len(conversation.messages)
    length = len(ids)
    for number, span in enumerate(spans):
        last = number == len(spans) - 1
        inside, behind = _places(span, tokens.offsets)
        mask[inside] = True
        if cut and last:  # nobody wrote an end here: the sample stops with the answer
            length = behind[0] if behind else length
            continue
        marker = next((place for place, at in enumerate(behind) if ids[at] in chat.stop_ids), None)
        if marker is not None:
            mask[behind[: marker + 1]] = True
    return Sample(np.array(ids[:length], dtype=np.int32), mask[:length], question_hash(conversation))


def _places(span: _Span, offsets: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Tokens of the answer, and those with anything of what the template put behind it. (A token may hold the last of
    the one and the first of the other; an empty stretch is a token the tokenizer put in by itself, such as a BOS.)"""
    own = [at for at, (low, high) in enumerate(offsets) if span.start <= low < high <= span.tail]
    inside = [at for at in own if offsets[at][1] <= span.stop]
    return inside, [at for at in own if offsets[at][1] > span.stop]


@dataclass(frozen=True)
class Dataset:
    """Samples for training and for validation. A question is in one of the two only."""

    train: tuple[Sample, ...]
    validation: tuple[Sample, ...]


def split(all_samples: Iterable[Sample], validation: float) -> Dataset:
    """Divide by the hash of the question: stable when text is added. UserError where nothing is left to train on."""
    train: list[Sample] = []
    held_out: list[Sample] = []
    for sample in all_samples:
        share = int(sample.name[:8], 16) / 0x100000000
        (held_out if share < validation else train).append(sample)
    if not train:
        raise UserError(
            "conversations with assistant tokens to train on expected, found none: check the data, --max-length and "
            "--validation"
        )
    return Dataset(tuple(train), tuple(held_out))


def batches(lengths: Sequence[int], batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Sample numbers of every batch of an epoch: samples of like length together, in random order.

    A batch holds at most `batch_tokens` tokens with its padding, or one longer sample. Lengths are stretched by up to
    a tenth at random, so that other samples come together in each epoch.
    """
    random = np.random.default_rng((seed, epoch))
    stretched = np.asarray(lengths) * random.uniform(1.0, 1.1, len(lengths))
    result: list[list[int]] = []
    current: list[int] = []
    longest = 0
    for number in np.argsort(stretched, kind="stable").tolist():
        longest = max(longest, lengths[number])
        if current and longest * (len(current) + 1) > batch_tokens:
            result.append(current)
            current, longest = [], lengths[number]
        current.append(number)
    result.append(current)
    return [result[at] for at in random.permutation(len(result)).tolist()]
