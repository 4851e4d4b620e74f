"""What the drafts of one answer go by: how children are chosen, what was learned of them, whether drafting pays."""

from __future__ import annotations

from eagle_chat.core.auto import AutoTree
from eagle_chat.core.children import BestChildren, ChildRule, SampledChildren, SharedNoise
from eagle_chat.core.config import SamplingConfig
from eagle_chat.core.noise import TargetNoise
from eagle_chat.core.pace import Pace
from eagle_chat.core.policies import Policy
from eagle_chat.core.state import DecodingState
from eagle_chat.core.tree import DraftTree
from eagle_chat.core.verification import Acceptance


class Guide:
    """`rule`: how children are chosen (None: the head's best). `calibration`: what is learned of their chances, where
    a policy or a rule goes by it. `pace`: for trees chosen cycle by cycle."""

    def __init__(
        self, policy: Policy, config: SamplingConfig, noise: TargetNoise | None, shared: bool, state: DecodingState
    ) -> None:
        """`noise`: that of the target's draws, if there is any. `shared`: whether the draft uses it too."""
        self.pace = Pace(policy.costs) if isinstance(policy, AutoTree) else None
        learns = shared or self.pace is not None
        self.calibration = state.calibration(config.temperature, shared) if learns else None
        self.rule: ChildRule | None = None
        if shared and noise is not None and self.calibration is not None:
            self.rule = SharedNoise(config, noise, self.calibration)
        elif self.calibration is not None:
            self.rule = BestChildren(self.calibration)
        elif policy.samples_children and config.verify == "rejection" and not config.greedy:
            self.rule = SampledChildren(config.temperature, config.seed)

    @property
    def rests(self) -> bool:
        """Whether the next step is to be a plain one."""
        return self.pace is not None and self.pace.rests

    def observe(self, tree: DraftTree, acceptance: Acceptance) -> None:
        """Learn from one verified tree."""
        if self.calibration is not None:
            self.calibration.observe(tree, acceptance)
        if self.pace is not None:
            self.pace.record(len(acceptance.path))
