from __future__ import annotations

import pytest

from eagle_chat.bench.plan import candidates, in_order, parse_integers, parse_numbers, parse_policies
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.errors import UserError

SMALL = TreeConfig("dynamic", depth=3, top_k=3, total_tokens=8)
ROOMY = TreeConfig("dynamic", depth=8, top_k=10, total_tokens=60)


def test_every_policy_at_every_temperature_with_plain_first() -> None:
    made = candidates(
        ("dynamic", "chain"), (8, 60), (0.0, 1.0), TreeConfig(depth=2), SamplingConfig(seed=5), SMALL, ROOMY
    )
    found = [(one.policy, one.tree.total_tokens, one.sampling.temperature) for one in made]
    per_temperature = [("plain", None), ("dynamic", 8), ("dynamic", 60), ("chain", None)]
    assert found == [(*shape, temperature) for temperature in (0.0, 1.0) for shape in per_temperature]
    assert {one.sampling.seed for one in made} == {5}
    assert made[3].tree == TreeConfig("chain", depth=2)


def test_every_head_drafts_every_tree_and_plain_decoding_comes_once() -> None:
    made = candidates(("dynamic", "chain"), (8, 16), (0.0,), TreeConfig(), SamplingConfig(), SMALL, ROOMY, num_heads=2)
    found = [(one.policy, one.tree.total_tokens, one.head) for one in made]
    drafted = [("dynamic", 8), ("dynamic", 16), ("chain", None)]
    assert found == [("plain", None, 0), *((*shape, head) for shape in drafted for head in (0, 1))]


def test_a_size_that_the_small_shape_cannot_reach_gets_the_roomy_one() -> None:
    made = candidates(("dynamic",), (22, 23, -1), (0.0,), TreeConfig(), SamplingConfig(), SMALL, ROOMY)
    assert [one.tree for one in made[1:]] == [
        TreeConfig("dynamic", total_tokens=22),
        TreeConfig("dynamic", depth=8, top_k=10, total_tokens=23),
        TreeConfig("dynamic", total_tokens=-1),
    ]
    asked = candidates(("dynamic",), (60,), (0.0,), TreeConfig(depth=4), SamplingConfig(), SMALL, ROOMY)
    assert asked[1].tree == TreeConfig("dynamic", depth=4, top_k=10, total_tokens=60)


def test_sizes_without_a_dynamic_tree_are_refused() -> None:
    with pytest.raises(UserError, match="add dynamic to --policies"):
        candidates(("chain",), (8,), (0.0,), TreeConfig(), SamplingConfig(), SMALL, ROOMY)


def test_lists_are_read_and_mistakes_told() -> None:
    assert parse_policies("none, chain,chain") == ("plain", "chain")
    assert parse_integers("8,16,-1", "--total-tokens") == (8, 16, -1)
    assert parse_numbers("0,.7", "--temperature") == (0.0, 0.7)
    for call in (
        lambda: parse_policies("tree"),
        lambda: parse_policies(","),
        lambda: parse_integers("8;16", "--total-tokens"),
        lambda: parse_numbers("cold", "--temperature"),
    ):
        with pytest.raises(UserError):
            call()


def test_each_round_begins_with_another_member() -> None:
    assert [in_order((4, 5, 6), number) for number in range(4)] == [[4, 5, 6], [5, 6, 4], [6, 4, 5], [4, 5, 6]]
