"""What one conversation leaves between turns: tokens, the target's cache, the head's cache."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from eagle_chat.core.cache import TreeCache
from eagle_chat.core.calibration import Calibration
from eagle_chat.core.errors import UserError


@dataclass
class DecodingState:
    """`tokens`: committed ids; the newest has no cache entry yet. `pending` [n, F]: target features of the tokens
    from the head's length on, which wait for the token after them. `owner`: the engine it belongs to. `run`: counts
    the answers begun, so that an older one cannot go on with what a newer one left. `calibrations`: what was learned
    of the head's chances, by temperature and whether noise is shared; here and not in the engine, so that a fresh
    conversation repeats.

    Between cycles `cache.length == len(tokens) - 1` and, with a head, `head_cache.length + n == cache.length`. An
    interrupt inside a step can leave these apart; `rewind` goes back to what is whole, so nothing else must care.
    """

    cache: TreeCache
    head_cache: TreeCache | None
    tokens: list[int] = field(default_factory=list)
    pending: Tensor | None = None
    owner: object = None
    run: int = 0
    calibrations: dict[tuple[float, bool], Calibration] = field(default_factory=dict)

    def begin(self, owner: object) -> int:
        """Start an answer; its number. UserError where the state is another engine's."""
        if self.owner is not owner:
            raise UserError("a state of this engine expected, found another one's: use engine.new_state()")
        self.run += 1
        return self.run

    def calibration(self, temperature: float, shared_noise: bool) -> Calibration:
        """What this conversation has learned of the head's chances under these conditions."""
        return self.calibrations.setdefault((temperature, shared_noise), Calibration())

    def check(self, run: int) -> None:
        """UserError where a newer answer was begun on this state."""
        if run != self.run:
            raise UserError("this answer cannot go on: another one was begun on the same state, use one state for each")

    def rewind(self, prompt: list[int], with_head: bool) -> int:
        """Make `prompt` the tokens and keep what the caches already hold of it; the number of tokens kept.

        At least the last prompt token is left to run, because its logits are needed. The head's entry t needs the
        token t+1, so with a head one token less than the common prefix can be kept.
        """
        for cache in (self.cache, self.head_cache):
            if cache is not None:
                cache.recover()
        common = common_prefix(self.tokens, prompt)
        keep = min(common, self.cache.length, len(prompt) - 1)
        if self.head_cache is not None:
            self.head_cache.truncate(max(common - 1, 0))
            if with_head:
                keep = min(keep, self.head_cache.length)
                self.head_cache.truncate(keep)
        self.cache.truncate(keep)
        self.pending = None
        self.tokens = list(prompt)
        return keep


def common_prefix(left: list[int], right: list[int]) -> int:
    """Length of the longest common beginning."""
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
