"""From a config to everything a run needs: target, samples, draft vocabulary, features, the head to begin with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle_chat.core.chat import Chat
from eagle_chat.core.config import LoadConfig
from eagle_chat.core.errors import UserError
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.loading import load_engine
from eagle_chat.core.target import Target
from eagle_chat.training import conversations, filters, store, vocabulary
from eagle_chat.training.config import CorpusConfig, TrainConfig
from eagle_chat.training.dataset import Dataset, Sample, samples, split
from eagle_chat.training.features import FeatureSource, LiveFeatures, Teacher
from eagle_chat.training.initialise import new_head
from eagle_chat.training.objectives import Objective, Weights
from eagle_chat.training.summary import listed

Say = Callable[[str], None]
Report = Callable[[str, float], None]
EXCLUDED_WORDS = 8


def load_target(config: TrainConfig | CorpusConfig, device: str | None = None) -> tuple[Target, Chat]:
    """The target alone, its weights fixed. `auto` is float32 on a CPU, where many rows are run at once, and what the
    checkpoint says elsewhere."""
    where = device or config.device
    on_cpu = where.startswith("cpu") or (where == "auto" and not torch.cuda.is_available())
    dtype: Any = "float32" if config.dtype == "auto" and on_cpu else config.dtype
    engine = load_engine(
        LoadConfig(
            base=config.base,
            draft="none",
            dtype=dtype,
            device=where,
            revision=config.revision,
            template=config.template,
            load_in_8bit=config.load_in_8bit,
            load_in_4bit=config.load_in_4bit,
        )
    )
    engine.target.model.requires_grad_(False)
    return engine.target, engine.chat


def load_data(config: TrainConfig, chat: Chat, say: Say) -> Dataset:
    """The samples of a run, questions to be kept out left out. UserError where nothing is left."""
    exclusion = filters.read_exclusion(config.exclude, EXCLUDED_WORDS)
    refused = 0
    kept = []
    left = conversations.Left()
    for conversation in conversations.read(config.data, config.split, left):
        if exclusion.refuses(conversation):
            refused += 1
        else:
            kept.append(conversations.with_system(conversation, config.system))
    found = list(samples(kept, chat, config.max_length, left.refused))
    for what, reasons in {"left out": left.refused, "shortened": left.shortened}.items():
        if reasons:
            say(f"conversations {what}: {listed(reasons)}")
    if config.exclude:
        say(f"{refused} conversations left out, because they share {EXCLUDED_WORDS} words in a row with --exclude")
    return split(found, config.validation)


def choose_vocabulary(config: TrainConfig, target: Target, train: Sequence[Sample], say: Say) -> Tensor | None:
    """The draft vocabulary by frequency; None for an eagle head, which uses the target's own."""
    if config.head == "eagle":
        return None
    return _most_frequent(config.draft_vocab, "draft vocabulary", target, train, say)


def _most_frequent(size: int, what: str, target: Target, train: Sequence[Sample], say: Say) -> Tensor | None:
    counts = vocabulary.token_counts(train, target.vocab_size)
    ids = vocabulary.draft_vocabulary(counts, size)
    say(f"{what}: {size:,} tokens, {vocabulary.covered(counts, ids):.2%} of the answer tokens")
    return ids


def loss_teacher(config: TrainConfig, target: Target, train: Sequence[Sample], say: Say) -> Teacher | None:
    """What an eagle head's token loss is measured with, where that is not the whole vocabulary."""
    if config.head != "eagle" or config.loss_vocab == 0:
        return None
    return Teacher(target, _most_frequent(config.loss_vocab, "token loss", target, train, say))


def features(
    config: TrainConfig,
    target: Target,
    taps: tuple[int, ...],
    part: Sequence[Sample],
    name: str,
    say: Say,
    report: Report,
) -> FeatureSource:
    """What a head that reads `taps` needs for the samples, run live or stored under the run's folder
    (`features_folder` moves that)."""
    if config.features == "live" or not part:
        return LiveFeatures(target, part, taps)
    folder = Path(config.features_folder or Path(config.out) / "features").expanduser() / name
    dtype: torch.dtype = getattr(torch, config.features_dtype)
    store.compute(target, part, taps, folder, dtype, say, report, config.revision)
    return store.StoredFeatures(folder, part, taps, target.device)


@dataclass(frozen=True)
class Materials:
    """Everything a run is made from."""

    target: Target
    chat: Chat
    dataset: Dataset
    draft_ids: Tensor | None
    objective: Objective
    train: FeatureSource
    validation: FeatureSource

    @property
    def head(self) -> DraftHead:
        """The head being trained."""
        return self.objective.head


def weights_of(config: TrainConfig) -> Weights:
    """The weights of the loss."""
    return Weights(
        config.step_decay,
        config.regression_weight,
        config.classification_weight,
        config.scale_regression,
        config.noise,
        config.dropout,
    )


def gather(
    config: TrainConfig, device: str, known_ids: Callable[[], Tensor | None] | None, say: Say, report: Report
) -> Materials:
    """Load and compute all of it. `known_ids` gives the draft vocabulary of the run that is resumed."""
    target, chat = load_target(config, device)
    dataset = load_data(config, chat, say)
    tokens = sum(int(sample.mask.sum()) for sample in dataset.train)
    say(f"{len(dataset.train):,} samples with {tokens:,} answer tokens; {len(dataset.validation):,} held out")
    if max(config.unroll) + 2 > config.max_length:
        raise UserError(f"max_length above {max(config.unroll) + 2} expected, found {config.max_length}: raise it")
    ids = known_ids() if known_ids is not None else choose_vocabulary(config, target, dataset.train, say)
    head, notes = new_head(config, target, ids)
    for note in notes:
        say(note)
    smaller = loss_teacher(config, target, dataset.train, say)
    objective = Objective(head, Teacher(target, ids), weights_of(config), smaller)
    taps = head.spec.taps  # of a head that is continued they need not be the config's
    train = features(config, target, taps, dataset.train, "train", say, report)
    validation = features(config, target, taps, dataset.validation, "validation", say, report)
    return Materials(target, chat, dataset, ids, objective, train, validation)
