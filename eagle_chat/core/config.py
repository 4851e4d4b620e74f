"""What a run can be told: three frozen values, validated once, the only home of defaults."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from eagle_chat.core.errors import UserError

PolicyName = Literal["static", "dynamic", "chain", "none"]
VerifyRule = Literal["coupled", "rejection"]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
AttentionName = Literal["auto", "sdpa", "eager"]
AUTO_NODES = -1
"""`TreeConfig.total_tokens` value that means "choose by measurement"."""


def _expect(condition: bool, what: str, found: object, remedy: str) -> None:
    if not condition:
        raise UserError(f"{what}, found {found!r}: {remedy}")


def _expect_types(config: object, **kinds: type) -> None:
    """Fields that are given must be of their kind: a float may be written as an int, nothing else may stand in."""
    for name, kind in kinds.items():
        value = getattr(config, name)
        fits = isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
        _expect(value is None or fits, f"{name} must be of kind {kind.__name__}", value, "change it")


def _expect_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    listed = ", ".join(str(choice) for choice in choices)
    _expect(value in choices, f"{name} must be one of {listed}", value, "choose one of these")


LARGEST = 1000
"""Most nodes, children or levels of a tree: far beyond what pays, and small enough not to fill the memory."""


@dataclass(frozen=True)
class LoadConfig:
    """What to load and where to run it.

    `base`: alias, hub id, folder or GGUF file of the target. `draft`: hub id or folder of the head, "none" for
    plain decoding, or None for the alias's own head. `attention` "auto": SDPA where the architecture has it. `taps`:
    which `hidden_states[i]` an EAGLE-3 head reads, None for what its checkpoint says. `thinking`: whether a model that
    can be told shall think, None for what its template does by itself. `draft_vocab`: tokens an `eagle` head may
    draft, a number or a JSON file of ids (see `heads.trimming`); None for all. `draft_int8`: on a CPU a large head's
    weights are rounded to 8 bits, which makes drafts quicker and changes no answer.
    """

    base: str = "smollm2"
    draft: str | None = None
    dtype: DtypeName = "auto"
    device: str = "auto"
    device_map: str | None = None
    load_in_8bit: bool = False
    load_in_4bit: bool = False
    revision: str | None = None
    template: str | None = None
    attention: AttentionName = "auto"
    draft_revision: str | None = None
    trust_remote_code: bool = False
    thinking: bool | None = None
    taps: tuple[int, int, int] | None = None
    draft_vocab: str | None = None
    draft_int8: bool = True

    def __post_init__(self) -> None:
        _expect_choice("dtype", self.dtype, get_args(DtypeName))
        _expect_choice("attention", self.attention, get_args(AttentionName))
        both = self.load_in_8bit and self.load_in_4bit
        _expect(not both, "one quantisation expected", "8-bit and 4-bit", "give only one of the two")
        _expect(bool(self.base), "a target is needed", self.base, "give an alias, a hub id, a folder or a GGUF file")


@dataclass(frozen=True)
class TreeConfig:
    """Shape of the draft. None means: the default that suits the head (see `drafting.resolve`).

    `depth` D: most drafted tokens on one path. `top_k` K: children of each expanded node. `total_tokens` N: nodes
    sent to the target, root included; -1 chooses by measurement, cycle by cycle. `paths`: own static tree, as child
    ranks from the root, for policy "static". `shared_noise`: draft above temperature 0 with the noise that the target
    draws with (see `children`); None is on wherever it can be, which is under the coupled rule.
    """

    policy: PolicyName | None = None
    depth: int | None = None
    top_k: int | None = None
    total_tokens: int | None = None
    paths: tuple[tuple[int, ...], ...] | None = None
    shared_noise: bool | None = None

    def __post_init__(self) -> None:
        _expect(
            self.shared_noise in (None, True, False), "shared_noise must be on or off", self.shared_noise, "change it"
        )
        _expect_types(self, depth=int, top_k=int, total_tokens=int)
        if self.paths is not None:
            _expect(
                _are_paths(self.paths), "paths must be lists of child ranks", self.paths, "give such as [[0],[0,0]]"
            )
            object.__setattr__(self, "paths", tuple(tuple(path) for path in self.paths))
        if self.policy is not None:
            _expect_choice("policy", self.policy, get_args(PolicyName))
        for name in ("depth", "top_k"):
            value = getattr(self, name)
            _expect(value is None or value >= 1, f"{name} must be at least 1", value, "give a positive number")
            _expect(value is None or value <= LARGEST, f"{name} must be at most {LARGEST}", value, "give a smaller one")
        total = self.total_tokens
        valid_total = total is None or 1 <= total <= LARGEST or total == AUTO_NODES
        what = f"total_tokens must be 1 to {LARGEST}, or -1 to choose by measurement"
        _expect(valid_total, what, total, "change it")


@dataclass(frozen=True)
class SamplingConfig:
    """How the target's next token is chosen and when the answer ends.

    Temperature 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 are off. The order of the warpers is that of
    transformers: temperature, top-k, top-p, min-p. `verify` matters above temperature 0 only. `stop`: strings that
    end the answer, not shown. `ignore_stop_ids` keeps going past the model's own stop tokens (for measurements).
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    verify: VerifyRule = "coupled"
    max_new_tokens: int = 512
    stop: tuple[str, ...] = ()
    ignore_stop_ids: bool = False

    def __post_init__(self) -> None:
        _expect_types(self, temperature=float, top_p=float, min_p=float, top_k=int, seed=int, max_new_tokens=int)
        missing = [name for name, value in vars(self).items() if value is None]
        _expect(not missing, "every field must have a value", f"none for {', '.join(missing)}", "leave it out")
        _expect(_are_strings(self.stop), "stop must be a list of strings", self.stop, "put a single one in a list")
        object.__setattr__(self, "stop", tuple(self.stop))
        finite = 0.0 <= self.temperature <= 100.0
        _expect(finite, "temperature must be between 0 and 100", self.temperature, "0 is greedy, 1 the model's own law")
        _expect(0.0 < self.top_p <= 1.0, "top_p must be in (0, 1]", self.top_p, "1 turns it off")
        _expect(self.top_k >= 0, "top_k must be 0 or more", self.top_k, "0 turns it off")
        _expect(0.0 <= self.min_p <= 1.0, "min_p must be in [0, 1]", self.min_p, "0 turns it off")
        _expect_choice("verify", self.verify, get_args(VerifyRule))
        _expect(self.max_new_tokens >= 0, "max_new_tokens must be 0 or more", self.max_new_tokens, "change it")
        _expect(all(self.stop), "stop strings must not be empty", self.stop, "leave the empty one out")
        _expect(-(2**63) <= self.seed < 2**63, "seed must fit in 64 bits", self.seed, "give a smaller one")

    @property
    def greedy(self) -> bool:
        """Whether the next token is the argmax."""
        return self.temperature == 0.0


def _are_strings(value: object) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(text, str) for text in value)


def _are_paths(paths: object) -> bool:
    if not isinstance(paths, tuple | list) or not all(isinstance(path, tuple | list) for path in paths):
        return False
    return all(isinstance(rank, int) and not isinstance(rank, bool) for path in paths for rank in path)


def cache_root() -> Path:
    """Folder for what can be fetched or computed again: `$EAGLE_CHAT_CACHE`, else the platform's. Not created here."""
    if override := os.environ.get("EAGLE_CHAT_CACHE"):
        return Path(override).expanduser().absolute()
    from platformdirs import user_cache_path

    return user_cache_path("eagle-chat", appauthor=False)
