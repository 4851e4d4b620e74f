from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_chat.core.auto import AutoTree
from eagle_chat.core.config import AUTO_NODES, SamplingConfig, TreeConfig
from eagle_chat.core.costs import CostTable
from eagle_chat.core.drafting import DynamicTree, NoDraft, StaticTree
from eagle_chat.core.errors import UserError
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.policies import (
    AUTO_DEPTH,
    AUTO_WIDTH,
    describe,
    largest_tree,
    resolve,
    shares_noise,
    tree_defaults,
)
from eagle_chat.core.tree import STATIC_PATHS, chain_paths
from tests.tiny import VOCAB, make_head, make_target

DEFAULTS = TreeConfig("dynamic", depth=6, top_k=4, total_tokens=20)
TARGET = make_target()
HEAD = make_head("eagle3", TARGET)
SMALL = make_head("eagle3", TARGET, draft_vocab=5)


COSTS = CostTable({1: 0.05, 8: 0.06, 16: 0.08}, first=0.002, level={1: 0.001, 10: 0.003})


def unasked() -> CostTable:
    raise AssertionError("nothing should be measured here")


@pytest.mark.parametrize("asked", [TreeConfig(), TreeConfig("none"), TreeConfig("none", 4, 4, 20)])
def test_without_a_head_there_is_no_draft(asked: TreeConfig) -> None:
    policy, config, notes = resolve(asked, None, DEFAULTS, unasked)
    assert (policy, config, notes) == (NoDraft(), TreeConfig("none", total_tokens=1), [])


@pytest.mark.parametrize("name", ["static", "dynamic", "chain"])
def test_a_draft_without_a_head_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"policy {name} needs a draft head.*--draft"):
        resolve(TreeConfig(name), None, DEFAULTS, unasked)  # type: ignore[arg-type]


def test_plain_decoding_beside_a_head() -> None:
    assert resolve(TreeConfig("none"), HEAD, DEFAULTS, unasked) == (NoDraft(), TreeConfig("none", total_tokens=1), [])


def test_what_is_left_open_comes_from_the_defaults() -> None:
    policy, config, notes = resolve(TreeConfig(), HEAD, DEFAULTS, unasked)
    assert policy == DynamicTree(6, 4, 20)
    assert config == DEFAULTS
    assert notes == []
    policy, config, _ = resolve(TreeConfig(depth=3), HEAD, DEFAULTS, unasked)
    assert policy == DynamicTree(3, 4, 20)
    assert config == TreeConfig("dynamic", 3, 4, 20)


def test_nothing_asked_and_static_defaults() -> None:
    policy, config, notes = resolve(TreeConfig(), HEAD, TreeConfig("static", 6, 10, 60), unasked)
    assert policy == StaticTree(STATIC_PATHS)
    assert config == TreeConfig("static", 5, None, 26)
    assert notes == []


def test_an_impossible_number_of_nodes_is_clamped_with_a_note() -> None:
    policy, config, notes = resolve(TreeConfig("dynamic", 1, 2, 60), HEAD, DEFAULTS, unasked)
    assert policy == DynamicTree(1, 2, 3)
    assert config.total_tokens == 3
    assert notes == ["a tree of depth 1 and top_k 2 has 3 nodes: used instead of 60"]


def test_top_k_above_the_draft_vocabulary_is_clamped_with_a_note() -> None:
    policy, config, notes = resolve(TreeConfig("dynamic", 2, 10, 30), SMALL, DEFAULTS, unasked)
    assert policy == DynamicTree(2, 5, 30)
    assert config.top_k == 5
    assert notes == ["the draft vocabulary has 5 tokens: top_k 5 used instead of 10"]
    _, _, notes = resolve(TreeConfig("dynamic", 1, 10, 30), SMALL, DEFAULTS, unasked)
    assert len(notes) == 2


@given(st.integers(1, 6), st.integers(1, 7), st.integers(1, 200), st.booleans())
def test_a_clamped_tree_is_possible_and_as_large_as_can_be(depth: int, top_k: int, total: int, small: bool) -> None:
    head: DraftHead = SMALL if small else HEAD
    policy, config, notes = resolve(TreeConfig("dynamic", depth, top_k, total), head, DEFAULTS, unasked)
    width = min(top_k, 5 if small else VOCAB)
    most = 1 + sum(width if level == 1 else width * width for level in range(1, depth + 1))
    assert largest_tree(depth, width) == most
    assert config.total_tokens == policy.max_nodes == min(total, most)
    assert bool(notes) == (total > most or width < top_k)
    assert isinstance(policy, NoDraft if total == 1 else DynamicTree)


def test_levels_that_could_hold_no_kept_node_are_not_drafted() -> None:
    policy, _, notes = resolve(TreeConfig("dynamic", 8, 4, 4), HEAD, DEFAULTS, unasked)
    assert policy == DynamicTree(3, 4, 4)
    assert notes == []


def test_a_tree_chosen_by_measurement_says_what_was_measured() -> None:
    policy, config, notes = resolve(TreeConfig("dynamic", 6, 3, AUTO_NODES), HEAD, DEFAULTS, lambda: COSTS)
    assert policy == AutoTree(6, 3, COSTS)
    assert config == TreeConfig("dynamic", 6, 3, AUTO_NODES)
    assert len(notes) == 1
    assert "chosen by measurement" in notes[0]
    assert "8: 60.0" in notes[0]


def test_such_a_tree_is_bounded_by_what_was_asked_for_alone() -> None:
    """The defaults' shape suits trees of a fixed size."""
    policy, config, _ = resolve(TreeConfig(total_tokens=AUTO_NODES), HEAD, DEFAULTS, lambda: COSTS)
    assert policy == AutoTree(AUTO_DEPTH, AUTO_WIDTH["cpu"], COSTS)
    assert config.total_tokens == AUTO_NODES
    assert resolve(TreeConfig(), HEAD, TreeConfig("dynamic", total_tokens=AUTO_NODES), lambda: COSTS)[0] == policy
    policy, _, notes = resolve(TreeConfig("dynamic", 2, 10, AUTO_NODES), SMALL, DEFAULTS, lambda: COSTS)
    assert policy == AutoTree(2, 5, COSTS)
    assert "top_k 5 used instead of 10" in notes[1]


def test_a_static_tree_is_not_chosen_by_measurement() -> None:
    assert resolve(TreeConfig("static", total_tokens=AUTO_NODES), HEAD, DEFAULTS, unasked)[0] == StaticTree(
        STATIC_PATHS
    )


def test_noise_is_shared_where_it_can_be() -> None:
    tree, sampled = DynamicTree(3, 3, 8), SamplingConfig(1.0)
    assert shares_noise(tree, TreeConfig(), sampled)
    assert shares_noise(tree, TreeConfig(shared_noise=True), sampled)
    assert not shares_noise(tree, TreeConfig(shared_noise=False), sampled)
    assert not shares_noise(tree, TreeConfig(shared_noise=True), SamplingConfig())
    assert not shares_noise(tree, TreeConfig(shared_noise=True), SamplingConfig(1.0, verify="rejection"))
    assert not shares_noise(NoDraft(), TreeConfig(), sampled)


def test_a_chain() -> None:
    policy, config, notes = resolve(TreeConfig("chain", depth=5), HEAD, DEFAULTS, unasked)
    assert policy == StaticTree(chain_paths(5), "chain")
    assert config == TreeConfig("chain", 5, 1, 6)
    assert notes == []
    assert resolve(TreeConfig("chain"), HEAD, DEFAULTS, unasked)[0].max_nodes == 7


@pytest.mark.parametrize(
    ("depth", "total", "used", "noted"),
    [(None, 4, 3, False), (3, 4, 3, False), (5, 4, 3, True), (2, 9, 2, True), (None, 2, 1, False)],
)
def test_a_chain_of_so_many_nodes(depth: int | None, total: int, used: int, noted: bool) -> None:
    policy, config, notes = resolve(TreeConfig("chain", depth, None, total), HEAD, DEFAULTS, unasked)
    assert policy == StaticTree(chain_paths(used), "chain")
    assert config == TreeConfig("chain", used, 1, used + 1)
    assert bool(notes) == noted
    if noted:
        assert f"depth {depth} has {depth + 1 if depth else 0} nodes: {used + 1} used" in notes[0]


@pytest.mark.parametrize("depth", [None, 5])
def test_a_chain_of_one_node_is_plain_decoding(depth: int | None) -> None:
    policy, config, _ = resolve(TreeConfig("chain", depth, None, 1), HEAD, DEFAULTS, unasked)
    assert policy == NoDraft()
    assert config.total_tokens == 1


def test_a_measured_chain() -> None:
    policy, config, notes = resolve(TreeConfig("chain", 6, None, AUTO_NODES), HEAD, DEFAULTS, lambda: COSTS)
    assert policy == AutoTree(6, 1, COSTS, "chain")
    assert config == TreeConfig("chain", 6, 1, AUTO_NODES)
    assert "chosen by measurement" in notes[0]


def test_a_chain_branches_nowhere_and_says_so() -> None:
    _, config, notes = resolve(TreeConfig("chain", 3, 10), HEAD, DEFAULTS, unasked)
    assert config.top_k == 1
    assert any("top_k" in note for note in notes)
    assert resolve(TreeConfig("chain", 3, 1), HEAD, DEFAULTS, unasked)[2] == []


def test_the_published_static_tree() -> None:
    policy, config, notes = resolve(TreeConfig("static"), HEAD, DEFAULTS, unasked)
    assert policy == StaticTree(STATIC_PATHS)
    assert config == TreeConfig("static", 5, None, 26)
    assert notes == []


def test_own_paths_are_a_static_tree() -> None:
    paths = ((0, 0), (0,), (1,))
    policy, config, notes = resolve(TreeConfig(paths=paths), HEAD, DEFAULTS, unasked)
    assert isinstance(policy, StaticTree)
    assert policy.max_nodes == 4
    assert config == TreeConfig("static", 2, None, 4, paths)
    assert notes == []


@pytest.mark.parametrize(
    ("paths", "reason"),
    [
        ((), "at least one path"),
        (((0, 1),), "needs its parent"),
        (((0,), (0,)), "twice"),
        (((0,), (2,)), "better-ranked sibling"),
        (((0,), ()), "empty or negative"),
    ],
)
@pytest.mark.parametrize("name", [None, "static"])
@pytest.mark.parametrize("depth", [None, 1])
def test_own_paths_that_are_no_tree_are_refused(
    paths: tuple[tuple[int, ...], ...], reason: str, name: str | None, depth: int | None
) -> None:
    with pytest.raises(UserError, match=reason):
        resolve(TreeConfig(name, depth, paths=paths), HEAD, DEFAULTS, unasked)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["dynamic", "chain", "none"])
def test_own_paths_under_another_policy_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"own paths need policy static, found {name}"):
        resolve(TreeConfig(name, paths=((0,),)), HEAD, DEFAULTS, unasked)  # type: ignore[arg-type]


def test_a_static_tree_is_cut_to_the_depth_asked_for() -> None:
    policy, config, _ = resolve(TreeConfig("static", depth=2), HEAD, DEFAULTS, unasked)
    assert policy == StaticTree(STATIC_PATHS[:12])
    assert config == TreeConfig("static", 2, None, 13)


def test_a_static_tree_says_what_it_does_not_use() -> None:
    _, config, notes = resolve(TreeConfig("static", None, 10, 60), HEAD, DEFAULTS, unasked)
    assert config.total_tokens == 26
    assert any("26 nodes: used instead of 60" in note for note in notes)
    assert any("top_k is not used" in note for note in notes)
    assert resolve(TreeConfig("static", None, None, 26), HEAD, DEFAULTS, unasked)[2] == []


def test_a_static_tree_needs_no_more_children_than_the_draft_vocabulary_has() -> None:
    tiny = make_head("eagle3", TARGET, draft_vocab=2)
    policy, config, notes = resolve(TreeConfig("static"), tiny, DEFAULTS, unasked)
    assert isinstance(policy, StaticTree)
    assert max(map(max, policy.paths)) == 1
    assert config.total_tokens == policy.max_nodes
    assert notes == [f"the draft vocabulary has 2 tokens: {policy.max_nodes} nodes of the static tree are used"]


def test_defaults_by_head_and_device() -> None:
    assert tree_defaults("eagle", "cuda").policy == "static"
    assert tree_defaults("eagle3", "cuda") == TreeConfig("dynamic", 8, 10, 60)
    # A tree that a CPU can afford, not the papers'.
    assert all(1 < (tree_defaults(name, "cpu").total_tokens or 99) <= 16 for name in ("eagle", "eagle3"))
    # Defaults leave nothing open that a dynamic tree needs.
    for architecture in ("eagle", "eagle3"):
        for device in ("cpu", "cuda", "mps"):
            defaults = tree_defaults(architecture, device)
            assert None not in (defaults.policy, defaults.depth, defaults.top_k, defaults.total_tokens)


@pytest.mark.parametrize(
    "config",
    [
        TreeConfig("static", 2, None, 4, ((0,), (0, 0), (1,))),
        TreeConfig("dynamic", 6, 4, 20),
        SamplingConfig(stop=("END", "\n")),
    ],
)
def test_a_description_is_what_json_makes_of_it(config: TreeConfig | SamplingConfig) -> None:
    described = describe(config)
    assert json.loads(json.dumps(described)) == described
    assert None not in described.values()
