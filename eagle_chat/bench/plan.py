"""What is compared: a policy with its tree, at a temperature. Plain decoding is always among them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast, get_args

from eagle_chat.core.config import AUTO_NODES, PolicyName, SamplingConfig, TreeConfig
from eagle_chat.core.errors import UserError
from eagle_chat.core.policies import largest_tree

PLAIN = "plain"
POLICIES = (PLAIN, *(name for name in get_args(PolicyName) if name != "none"))
DEFAULT_POLICIES = ("plain", "chain", "static", "dynamic")


@dataclass(frozen=True)
class Candidate:
    """One way of answering. `policy`: the word for people ("plain" where the engine says "none"). `head`: which of
    the heads that are compared drafts."""

    policy: str
    tree: TreeConfig
    sampling: SamplingConfig
    head: int = 0

    @property
    def plain(self) -> bool:
        """Whether this is the baseline."""
        return self.policy == PLAIN


def parse_policies(text: str) -> tuple[str, ...]:
    """Names from "plain,chain"; UserError for an unknown one. "none" is the engine's word for plain."""
    names = [PLAIN if name == "none" else name for name in _parts(text)]
    for name in names:
        if name not in POLICIES:
            raise UserError(f"policies of {', '.join(POLICIES)} expected, found {name!r}: check --policies")
    return tuple(dict.fromkeys(names))


def parse_integers(text: str, option: str) -> tuple[int, ...]:
    """Whole numbers from "8,16"; UserError otherwise."""
    try:
        return tuple(dict.fromkeys(int(part) for part in _parts(text)))
    except ValueError:
        raise UserError(f"whole numbers with commas expected, found {text!r}: check {option}") from None


def parse_numbers(text: str, option: str) -> tuple[float, ...]:
    """Numbers from "0,0.7"; UserError otherwise."""
    try:
        return tuple(dict.fromkeys(float(part) for part in _parts(text)))
    except ValueError:
        raise UserError(f"numbers with commas expected, found {text!r}: check {option}") from None


def _parts(text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UserError(f"at least one value expected, found {text!r}: separate several by commas")
    return parts


def candidates(
    policies: Sequence[str],
    sizes: Sequence[int],
    temperatures: Sequence[float],
    tree: TreeConfig,
    sampling: SamplingConfig,
    defaults: TreeConfig,
    roomy: TreeConfig,
    num_heads: int = 1,
) -> list[Candidate]:
    """Every policy at every temperature by every head, plain (once, for all heads) first; dynamic trees in every size
    (empty: one of `tree`).

    A size that `defaults` (depth and branching of this machine) cannot reach gets the shape of `roomy` where `tree`
    asks for none. UserError where sizes are given and nothing dynamic is compared.
    """
    if sizes and "dynamic" not in policies:
        raise UserError(
            f"sizes are for dynamic trees, found the policies {', '.join(policies)}: add dynamic to --policies, leave "
            "--total-tokens out, or give --depth for a chain"
        )
    shapes = [(PLAIN, TreeConfig(policy="none"))]
    for policy in policies:
        if policy == "dynamic":
            shapes += [(policy, _sized(tree, size, defaults, roomy)) for size in sizes or (tree.total_tokens,)]
        elif policy != PLAIN:
            asked = dataclasses.replace(tree, policy=cast(PolicyName, policy), total_tokens=None)
            shapes.append((policy, asked if policy == "static" else dataclasses.replace(asked, paths=None)))
    by_head = [(policy, shape, head) for policy, shape in shapes[1:] for head in range(num_heads)]
    return [
        Candidate(policy, shape, dataclasses.replace(sampling, temperature=temperature), head)
        for temperature in temperatures
        for policy, shape, head in [(*shapes[0], 0), *by_head]
    ]


def _sized(tree: TreeConfig, size: int | None, defaults: TreeConfig, roomy: TreeConfig) -> TreeConfig:
    asked = dataclasses.replace(tree, policy="dynamic", total_tokens=size, paths=None)
    depth, top_k = tree.depth or defaults.depth, tree.top_k or defaults.top_k
    if size in (None, AUTO_NODES) or depth is None or top_k is None or size <= largest_tree(depth, top_k):
        return asked
    return dataclasses.replace(asked, depth=tree.depth or roomy.depth, top_k=tree.top_k or roomy.top_k)


def in_order(group: Sequence[int], round_number: int) -> list[int]:
    """The members of one group in the order of this round: each round another one begins, so that none profits from
    always running first (or after the same neighbour) while the machine warms up or slows down."""
    start = round_number % len(group)
    return [*group[start:], *group[:start]]
