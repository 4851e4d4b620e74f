"""From what a person asked for to the policy that runs, with a note for everything that had to be changed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from eagle_chat.core.auto import AutoTree
from eagle_chat.core.config import AUTO_NODES, PolicyName, SamplingConfig, TreeConfig
from eagle_chat.core.costs import CostTable
from eagle_chat.core.drafting import DynamicTree, NoDraft, StaticTree
from eagle_chat.core.errors import UserError
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.tree import STATIC_PATHS, chain_paths, check_paths

Policy = NoDraft | StaticTree | DynamicTree | AutoTree

AUTO_DEPTH = 8
"""Most levels of a tree that is chosen cycle by cycle; where they do not pay they are not drafted."""
AUTO_WIDTH = {"cpu": 4}
"""Children a node in such a tree, by device; elsewhere as in the papers' trees."""
CPU_TREE = TreeConfig("dynamic", depth=3, top_k=3, total_tokens=8)
"""A CPU with matrix instructions runs 8 tokens in about the time of one; more cost more."""


def tree_defaults(architecture: str, device: str) -> TreeConfig:
    """Defaults by head and device: the papers' trees on an accelerator, a small one on a CPU."""
    if device == "cpu":
        return CPU_TREE
    if architecture == "eagle":
        return TreeConfig("static", depth=6, top_k=10, total_tokens=60)
    return TreeConfig("dynamic", depth=8, top_k=10, total_tokens=60)


def embedded_defaults(device: str) -> TreeConfig:
    """Defaults of the embedded model: a tree chosen by what this machine is fast at, cycle by cycle."""
    return dataclasses.replace(tree_defaults("eagle3", device), total_tokens=AUTO_NODES)


def largest_tree(depth: int, top_k: int) -> int:
    """Nodes that a dynamic tree can have, root included: K on the first level, K*K on every further one."""
    return 1 + top_k + (depth - 1) * top_k * top_k


def resolve(
    asked: TreeConfig, head: DraftHead | None, defaults: TreeConfig, costs: Callable[[], CostTable]
) -> tuple[Policy, TreeConfig, list[str]]:
    """The policy, the tree as it will be run (nothing left open), and notes for people.

    `costs` is asked only where the tree is to be chosen by measurement. UserError where a draft is asked for without a
    head, or paths where they cannot be used.
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
    if name == "static":
        return _static(asked, head)
    # A chain without a number of nodes has the depth asked for, even where trees are chosen by measurement.
    if asked.total_tokens == AUTO_NODES or (name == "dynamic" and filled["total_tokens"] == AUTO_NODES):
        return _auto(name, asked, head, costs())
    return _chain(asked, filled) if name == "chain" else _dynamic(filled, head)


def _auto(
    name: PolicyName, asked: TreeConfig, head: DraftHead, costs: CostTable
) -> tuple[Policy, TreeConfig, list[str]]:
    """A tree (or chain) chosen cycle by cycle; what was asked for bounds it."""
    depth, notes = asked.depth or AUTO_DEPTH, [costs.note()]
    widest = AUTO_WIDTH.get(head.device.type, 10) if asked.top_k is None else asked.top_k
    top_k = 1 if name == "chain" else min(widest, head.spec.draft_vocab_size)
    if name != "chain" and top_k < (asked.top_k or 0):
        notes.append(f"the draft vocabulary has {top_k} tokens: top_k {top_k} used instead of {asked.top_k}")
    return AutoTree(depth, top_k, costs, name), TreeConfig(name, depth, top_k, AUTO_NODES), notes


def _chain(asked: TreeConfig, filled: dict[str, int]) -> tuple[Policy, TreeConfig, list[str]]:
    depth, notes = filled["depth"], list[str]()
    if asked.total_tokens is not None and asked.total_tokens - 1 != depth:
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


def _dynamic(filled: dict[str, int], head: DraftHead) -> tuple[Policy, TreeConfig, list[str]]:
    depth, top_k, total = filled["depth"], filled["top_k"], filled["total_tokens"]
    notes = []
    size = head.spec.draft_vocab_size
    if top_k > size:
        notes.append(f"the draft vocabulary has {size} tokens: top_k {size} used instead of {top_k}")
        top_k = size
    most = largest_tree(depth, top_k)
    if total > most:
        notes.append(f"a tree of depth {depth} and top_k {top_k} has {most} nodes: used instead of {total}")
        total = most
    # A path of kept nodes cannot be longer than their number: deeper levels would be drafted in vain.
    depth = min(depth, max(total - 1, 1))
    config = TreeConfig("dynamic", depth, top_k, total)
    return (DynamicTree(depth, top_k, total) if total > 1 else NoDraft()), config, notes


def shares_noise(policy: Policy, tree: TreeConfig, config: SamplingConfig) -> bool:
    """Whether a draft uses the target's noise: above temperature 0 under the coupled rule, unless switched off."""
    can = not config.greedy and config.verify == "coupled" and not isinstance(policy, NoDraft)
    return can and tree.shared_noise is not False


def describe(config: TreeConfig | SamplingConfig) -> dict[str, Any]:
    """What was set, as JSON gives it back: lists and no tuples."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return {key: value for key, value in values.items() if value is not None}
