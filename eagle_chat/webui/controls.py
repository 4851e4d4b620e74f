"""The page's controls as values, and from them what the engine takes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from eagle_chat.core.config import AUTO_NODES, PolicyName, SamplingConfig, TreeConfig, VerifyRule
from eagle_chat.core.errors import UserError
from eagle_chat.webui import limits

Mode = Literal["speculative", "plain"]
OWN_HEAD = ""
"""The name of the head that the engine was loaded with."""
DRAFTING = ("mode", "policy", "depth", "top_k", "total_tokens", "head", "verify")
"""Fields of `Controls` that say how to draft and verify, which a server decides itself."""


@dataclass(frozen=True)
class Controls:
    """One value a control, in the order of the page; checked by `tree` and `sampling`. `total_tokens` 0: chosen by
    cost."""

    mode: Mode = "speculative"
    policy: PolicyName = "dynamic"
    depth: int = 3
    top_k: int = 3
    total_tokens: int = 8
    head: str = OWN_HEAD
    temperature: float = 0.0
    seed: int = 0
    verify: VerifyRule = "coupled"
    top_p: float = 1.0
    sample_top_k: int = 0
    min_p: float = 0.0
    max_new_tokens: int = 256
    system: str = ""

    @classmethod
    def of(cls, tree: TreeConfig, sampling: SamplingConfig, system: str | None) -> Controls:
        """The controls as the command line sets them."""
        given = {name: getattr(tree, name) for name in ("depth", "top_k", "total_tokens")}
        shape = {name: max(value, 0) for name, value in given.items() if value is not None}
        return cls(
            mode="plain" if tree.policy == "none" else "speculative",
            policy=tree.policy if tree.policy in ("dynamic", "static", "chain") else "dynamic",
            temperature=sampling.temperature,
            seed=sampling.seed,
            verify=sampling.verify,
            top_p=sampling.top_p,
            sample_top_k=sampling.top_k,
            min_p=sampling.min_p,
            max_new_tokens=min(max(sampling.max_new_tokens, 1), limits.NEW_TOKENS),
            system=system or "",
            **shape,
        )

    def tree(self, policy: PolicyName | None = None) -> TreeConfig:
        """The tree; `policy`: another than the chosen one. UserError where it is too large for the page."""
        policy = policy or ("none" if self.mode == "plain" else self.policy)
        depth = limits.within(self.depth, 1, limits.DEPTH, "a depth")
        top_k = limits.within(self.top_k, 1, limits.TOP_K, "a top_k")
        nodes = limits.within(self.total_tokens, 0, limits.NODES, "a number of nodes") or AUTO_NODES
        if policy == "none":
            return TreeConfig(policy="none")
        if policy == "chain":
            return TreeConfig(policy="chain", depth=depth)
        if policy == "static":
            return TreeConfig(policy="static", depth=depth)
        return TreeConfig(policy=policy, depth=depth, top_k=top_k, total_tokens=nodes)

    def sampling(self) -> SamplingConfig:
        """How tokens are drawn. UserError where a value is not possible."""
        if any(value is None for value in dataclasses.astuple(self)):
            raise UserError("a value in every field expected, found an empty one: fill it in")
        return SamplingConfig(
            temperature=float(self.temperature),
            top_p=float(self.top_p),
            top_k=limits.within(self.sample_top_k, 0, 10**6, "a number of best tokens"),
            min_p=float(self.min_p),
            seed=limits.within(self.seed, -(2**53), 2**53, "a seed"),
            verify=self.verify,
            max_new_tokens=limits.within(self.max_new_tokens, 1, limits.NEW_TOKENS, "a number of new tokens"),
        )

    def system_text(self) -> str | None:
        """The system message, None where there is none."""
        text = limits.check_text(self.system, limits.SYSTEM, "a system message")
        return text if text.strip() else None
