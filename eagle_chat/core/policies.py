"""From what a person asked for to the policy that runs, with a note for everything that had to be changed."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

from eagle_chat.core.config import AUTO_NODES, SamplingConfig, TreeConfig
from eagle_chat.core.drafting import DynamicTree, NoDraft, Policy, StaticTree
from eagle_chat.core.errors import UserError
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.tree import STATIC_PATHS, chain_paths, check_paths

ChooseNodes = Callable[[int], int]
"""Given the most nodes that make sense, the number to send to the target on this machine."""

AUTO_LIMIT = 60
"""Most nodes that a measurement considers."""


CPU_TREE = TreeConfig("dynamic", depth=3, top_k=3, total_tokens=8)
"""A CPU with matrix instructions runs 8 tokens in about the time of one; more cost more."""


def tree_defaults(architecture: str, device: str) -> TreeConfig:
    """Defaults by head and device: the papers' trees on an accelerator, a small one on a CPU."""
    if device == "cpu":
        return CPU_TREE
    if architecture == "eagle":
        return TreeConfig("static", depth=6, top_k=10, total_tokens=60)
    return TreeConfig("dynamic", depth=8, top_k=10, total_tokens=60)


def largest_tree(depth: int, top_k: int) -> int:
    """Nodes that a dynamic tree can have, root included: K on the first level, K*K on every further one."""
    return 1 + top_k + (depth - 1) * top_k * top_k


def resolve(
    asked: TreeConfig, head: DraftHead | None, defaults: TreeConfig, choose_nodes: ChooseNodes
) -> tuple[Policy, TreeConfig, list[str]]:
    """The policy, the tree as it will be run (nothing left open), and notes for people.

    UserError where a draft is asked for without a head, or paths where they cannot be used.
    """
    if head is None:
        if asked.policy not in (None, "none"):
            raise UserError(f"policy {asked.policy} needs a draft head, found none: give --draft, or --policy none")
        return NoDraft(), TreeConfig("none", total_tokens=1), []
    name = asked.policy or ("static" if asked.paths is not None else defaults.policy) or "dynamic"
    if asked.paths is not None and name != "static":
        raise UserError(f"own paths need policy static, found {name}: give --policy static")
    filled = {
        key: getattr(asked, key) if getattr(asked, key) is not None else getattr(defaults, key)
        for key in ("depth", "top_k", "total_tokens")
    }
    if name == "none":
        return NoDraft(), TreeConfig("none", total_tokens=1), []
    if name == "chain":
        return _chain(asked, filled, choose_nodes)
    if name == "static":
        return _static(asked, head)
    return _dynamic(filled, head, choose_nodes)


def _chain(
    asked: TreeConfig, filled: dict[str, int], choose_nodes: ChooseNodes
) -> tuple[Policy, TreeConfig, list[str]]:
    depth, notes = filled["depth"], []
    if asked.total_tokens == AUTO_NODES:
        depth = max(1, choose_nodes(depth + 1) - 1)
        notes.append(f"chosen by measurement: a chain of {depth}")
    elif asked.total_tokens is not None and asked.total_tokens - 1 != depth:
        depth = _shorter_chain(asked, notes)
    if depth == 0:
        return NoDraft(), TreeConfig("none", total_tokens=1), [*notes, "a chain of one node is plain decoding"]
    if asked.top_k not in (None, 1):
        notes.append("a chain has one child a node: top_k is not used")
    return StaticTree(chain_paths(depth), name="chain"), TreeConfig("chain", depth, 1, depth + 1), notes


def _shorter_chain(asked: TreeConfig, notes: list[str]) -> int:
    """A chain of N nodes has depth N - 1; where both were given, the smaller rules."""
    assert asked.total_tokens is not None
    by_nodes = asked.total_tokens - 1
    if asked.depth is None:
        return by_nodes
    depth = min(asked.depth, by_nodes)
    notes.append(
        f"a chain of depth {asked.depth} has {asked.depth + 1} nodes: {depth + 1} used instead of {by_nodes + 1}"
    )
    return depth


def _static(asked: TreeConfig, head: DraftHead) -> tuple[Policy, TreeConfig, list[str]]:
    paths = check_paths(STATIC_PATHS if asked.paths is None else asked.paths)
    notes = []
    size = head.spec.draft_vocab_size
    if asked.depth is not None:
        paths = tuple(path for path in paths if len(path) <= asked.depth)
    if any(max(path) >= size for path in paths):
        paths = tuple(path for path in paths if max(path) < size)
        notes.append(f"the draft vocabulary has {size} tokens: {len(paths) + 1} nodes of the static tree are used")
    policy = StaticTree(paths)
    if asked.total_tokens not in (None, AUTO_NODES, policy.max_nodes):
        notes.append(f"this static tree has {policy.max_nodes} nodes: used instead of {asked.total_tokens}")
    if asked.top_k is not None:
        notes.append("a static tree has its own branching: top_k is not used")
    depth = max(map(len, paths))
    return policy, TreeConfig("static", depth, None, policy.max_nodes, asked.paths), notes


def _dynamic(
    filled: dict[str, int], head: DraftHead, choose_nodes: ChooseNodes
) -> tuple[Policy, TreeConfig, list[str]]:
    depth, top_k, total = filled["depth"], filled["top_k"], filled["total_tokens"]
    notes = []
    size = head.spec.draft_vocab_size
    if top_k > size:
        notes.append(f"the draft vocabulary has {size} tokens: top_k {size} used instead of {top_k}")
        top_k = size
    most = largest_tree(depth, top_k)
    if total == AUTO_NODES:
        total = choose_nodes(min(most, AUTO_LIMIT))
        notes.append(
            f"chosen by measurement: {total} {'nodes' if total > 1 else 'node, so no draft: it would not pay here'}"
        )
    elif total > most:
        notes.append(f"a tree of depth {depth} and top_k {top_k} has {most} nodes: used instead of {total}")
        total = most
    # A path of kept nodes cannot be longer than their number: deeper levels would be drafted in vain.
    depth = min(depth, max(total - 1, 1))
    config = TreeConfig("dynamic", depth, top_k, total)
    return (DynamicTree(depth, top_k, total) if total > 1 else NoDraft()), config, notes


def expected_tokens(num_nodes: int) -> float:
    """A prior for tokens per cycle by tree size, before anything was seen of the head: 1 + 0.3 log2 N.

    It passes through what the shipped head reaches with 8 nodes (1.90) and is close at 16 (2.10).
    """
    return 1.0 + 0.3 * math.log2(num_nodes)


def describe(config: TreeConfig | SamplingConfig) -> dict[str, Any]:
    """What was set, as JSON gives it back: lists and no tuples."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return {key: value for key, value in values.items() if value is not None}
