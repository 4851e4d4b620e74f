"""What a training run and a corpus can be told: frozen values, validated once, the only home of defaults.

No torch here: the command line reads these to build its options.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import tomllib
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from eagle_chat.core.errors import UserError

HeadKind = Literal["eagle", "eagle3"]
FeatureMode = Literal["live", "disk"]
StoredDtype = Literal["bfloat16", "float16"]
Precision = Literal["no", "bf16", "fp16"]
Schedule = Literal["cosine", "linear", "constant"]
Start = Literal["target", "random"]
Tracker = Literal["none", "tensorboard", "trackio"]

DECAYED_STEPS = 0.8
"""Weight of unroll step j in the loss is this to the power of j (arXiv 2503.01840, official code)."""


def _expect(condition: bool, what: str, found: object) -> None:
    if not condition:
        raise UserError(f"{what} expected, found {found!r}: change it")


def _expect_finite(config: CorpusConfig | TrainConfig) -> None:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        for number in value if isinstance(value, tuple) else (value,):
            _expect(not isinstance(number, float) or math.isfinite(number), f"a finite {field.name}", number)


def _expect_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    _expect(value in choices, f"{name} to be one of {', '.join(map(str, choices))}", value)


@dataclass(frozen=True)
class CorpusConfig:
    """How a corpus is made.

    Without `source` the target writes the questions itself. `source`: files, folders or a hub data set; with
    `regenerate` only their questions are used and the target answers anew. `answers`: how many to make in all; 0:
    every one of the source, or 1000 without one. `temperatures` of the answers take turns; the questions are written
    at `question_temperature`. `exclude`: files with questions that must not occur: one that shares `exclude_words`
    words in a row with any of them is refused. `batch` conversations are decoded together; that many are lost at most
    when the program is killed.
    """

    out: str
    base: str = "smollm2"
    source: tuple[str, ...] = ()
    split: str = "train"
    regenerate: bool = False
    answers: int = 0
    batch: int = 32
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    question_temperature: float = 0.7
    question_min_p: float = 0.05
    max_question_tokens: int = 96
    max_new_tokens: int = 256
    min_answer_tokens: int = 8
    min_question_words: int = 3
    keep_loops: bool = False
    exclude: tuple[str, ...] = ()
    exclude_words: int = 8
    system: str | None = None
    seed: int = 0
    revision: str | None = None
    template: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    load_in_8bit: bool = False
    load_in_4bit: bool = False

    def __post_init__(self) -> None:
        _expect_finite(self)
        _expect(bool(self.out), "a folder for the corpus (--out)", self.out)
        _expect(self.answers >= 0, "answers of 0 or more", self.answers)
        for name in ("min_answer_tokens", "min_question_words"):
            _expect(getattr(self, name) >= 0, f"{name} of at least 0", getattr(self, name))
        for name in ("batch", "max_question_tokens", "max_new_tokens", "exclude_words"):
            _expect(getattr(self, name) >= 1, f"{name} of at least 1", getattr(self, name))
        _expect(len(self.temperatures) > 0, "at least one temperature", self.temperatures)
        _expect(all(0.0 <= value <= 10.0 for value in self.temperatures), "temperatures of 0 to 10", self.temperatures)
        _expect(self.question_temperature > 0, "question_temperature above 0", self.question_temperature)
        _expect(0.0 <= self.question_min_p < 1.0, "question_min_p in [0, 1)", self.question_min_p)
        folder = Path(self.out).expanduser().resolve()
        own = [name for name in self.source if Path(name).expanduser().resolve().is_relative_to(folder)]
        _expect(not own, "a source outside the corpus's own folder (--out)", own)
        _expect(
            not self.regenerate or bool(self.source), "a source to take questions from with regenerate", self.source
        )


@dataclass(frozen=True)
class TrainConfig:
    """A whole training run. Defaults are those of a small target; a target of 7B and more wants the papers' own
    learning rates (3e-5 for `eagle`, 5e-5 for `eagle3`).

    `data`: files, folders of JSONL shards, or a hub data set. `out`: the run's folder. `start`: "target" begins with
    the target's own weights, "random" without; `from_head` goes on from a head's folder instead, with the taps and
    norms of that head. Norms that are not said (None) are as the head has them, and off in a new one. `unroll`: steps
    of the training-time test, one number or a plan over equal parts of the run (2,2,4). `batch_tokens`: tokens of one
    forward, padding included; `accumulate` such batches make one optimiser step. `steps`: optimiser steps, or 0 for
    `epochs` over the data. `features`: "live" runs the target in every epoch, "disk" runs it once. `loss_vocab`: an
    eagle head's token loss over so many of the most frequent tokens, 0 for all: the LM head of a small target costs
    more than the draft head itself.
    """

    data: tuple[str, ...]
    out: str
    base: str = "smollm2"
    head: HeadKind = "eagle3"
    exclude: tuple[str, ...] = ()
    split: str = "train"
    system: str | None = None
    max_length: int = 512
    validation: float = 0.03
    # the head
    start: Start = "target"
    from_head: str | None = None
    draft_vocab: int = 8192
    taps: tuple[int, ...] = ()
    norm_before_fc: bool | None = None
    norm_output: bool | None = None
    # what is learnt
    unroll: tuple[int, ...] = (2, 4)
    step_decay: float = DECAYED_STEPS
    regression_weight: float = 1.0
    classification_weight: float = 0.1
    loss_vocab: int = 0
    scale_regression: bool = True
    noise: float = 0.1
    dropout: float = 0.0
    # how
    steps: int = 0
    epochs: float = 4.0
    batch_tokens: int = 2048
    accumulate: int = 1
    learning_rate: float = 1e-3
    warmup: float = 0.03
    schedule: Schedule = "cosine"
    final_rate: float = 0.02
    weight_decay: float = 0.0
    clip: float = 1.0
    ema: float = 0.0
    seed: int = 0
    # where and with what
    features: FeatureMode = "live"
    features_dtype: StoredDtype = "bfloat16"
    features_folder: str | None = None
    precision: Precision = "no"
    revision: str | None = None
    template: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    load_in_8bit: bool = False
    load_in_4bit: bool = False
    # seen and kept
    evaluate_every: int = 200
    evaluate_samples: int = 64
    save_every: int = 100
    keep_checkpoints: int = 2
    minutes: float = 0.0
    tracker: Tracker = "none"

    def __post_init__(self) -> None:
        _expect_finite(self)
        _expect(len(self.data) > 0, "at least one file, folder or hub data set (--data)", self.data)
        _expect(bool(self.out), "a folder for the run (--out)", self.out)
        for name, choices in _choices(type(self)).items():
            _expect_choice(name, getattr(self, name), choices)
        for name in ("batch_tokens", "accumulate", "evaluate_samples", "save_every", "evaluate_every", "draft_vocab"):
            _expect(getattr(self, name) >= 1, f"{name} of at least 1", getattr(self, name))
        _expect(self.keep_checkpoints >= 1, "keep_checkpoints of at least 1", self.keep_checkpoints)
        _expect(self.max_length >= 8, "max_length of at least 8", self.max_length)
        _expect(0.0 <= self.validation < 1.0, "validation share in [0, 1)", self.validation)
        _expect(self.loss_vocab >= 0, "loss_vocab of at least 0", self.loss_vocab)
        _expect(len(self.unroll) > 0 and min(self.unroll) >= 1, "unroll steps of at least 1", self.unroll)
        _expect(len(self.taps) in (0, 3), "three taps or none", self.taps)
        _expect(self.steps >= 0 and (self.steps > 0 or self.epochs > 0), "steps or epochs above 0", self.epochs)
        _expect(0 <= self.seed < 2**63, "a seed of 0 to 2^63 - 1", self.seed)
        _expect(self.learning_rate > 0, "a learning rate above 0", self.learning_rate)
        not_below_0 = (
            "noise", "step_decay", "regression_weight", "classification_weight", "weight_decay", "minutes", "epochs",
        )  # fmt: skip
        for name in not_below_0:
            _expect(getattr(self, name) >= 0, f"{name} of at least 0", getattr(self, name))
        _expect(0.0 <= self.dropout < 1.0, "dropout in [0, 1)", self.dropout)
        _expect(0.0 <= self.ema < 1.0, "ema in [0, 1)", self.ema)
        _expect(0.0 <= self.warmup < 1.0, "warmup in [0, 1)", self.warmup)
        _expect(0.0 <= self.final_rate <= 1.0, "final_rate of 0 to 1", self.final_rate)
        _expect(self.clip > 0, "clip above 0", self.clip)
        both = self.load_in_8bit and self.load_in_4bit
        _expect(not both, "one quantisation", "8-bit and 4-bit")
        eagle3_only = self.head == "eagle3" or not (self.norm_before_fc or self.norm_output or self.taps)
        fresh = self.from_head is None or self.start == "target"
        _expect(fresh, "no --start random beside from_head, whose weights it begins with,", self.start)
        _expect(eagle3_only, "norm_before_fc, norm_output and taps with head eagle3 only", self.head)


FREE_TO_CHANGE = (
    "out", "minutes", "save_every", "keep_checkpoints", "tracker", "features", "features_folder", "features_dtype",
    "evaluate_every", "evaluate_samples", "device",
)  # fmt: skip
"""Fields of `TrainConfig` that may differ when a run is resumed: they do not change what is learnt. (Stored features
are rounded, so a change between live and disk is allowed but moves the curve a little.)"""

Config = TypeVar("Config", CorpusConfig, TrainConfig)


def from_toml(kind: type[Config], path: Path | None, given: dict[str, Any]) -> Config:
    """A config from a TOML file and what was `given` beside it, which goes first.

    UserError for a file that cannot be read, an unknown key (naming the nearest one), or a value of a wrong type.
    """
    values = _file_values(path) if path is not None else {}
    hints = get_type_hints(kind)
    for name in values:
        if name not in hints:
            near = difflib.get_close_matches(name, hints, n=1)
            remedy = f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(hints)}"
            raise UserError(f"{path}: unknown key {name!r}: {remedy}")
    values = {name: _typed(name, value, hints[name], path) for name, value in values.items()} | given
    missing = [
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.name not in values
    ]
    if missing:
        raise UserError(f"{', '.join(missing)} expected, found none: give --{missing[0]} or put it into --config")
    return kind(**values)


def _file_values(path: Path) -> dict[str, Any]:
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"a TOML file expected at {path}, found none to read ({error.strerror})") from error
    except ValueError as error:
        raise UserError(f"{path} must be a TOML file, found: {error}: correct it") from error
    return {name.replace("-", "_"): value for name, value in read.items()}


def _typed(name: str, value: Any, hint: Any, path: Path | None) -> Any:
    """`value` as the field's type; whole numbers may stand for fractions, single values for lists of one."""
    kinds = [kind for kind in _alternatives(hint) if kind is not type(None)]
    kind = kinds[0]
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        return tuple(_typed(name, part, item, path) for part in (value if isinstance(value, list) else [value]))
    if get_origin(kind) is Literal:
        kind = str
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UserError(f"{path}: {name} of type {kind.__name__} expected, found {value!r}: change it")
    return value


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _choices(kind: type) -> dict[str, tuple[object, ...]]:
    return {name: get_args(hint) for name, hint in get_type_hints(kind).items() if get_origin(hint) is Literal}
