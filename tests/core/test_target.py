"""The seams to transformers: masks by kind of layer, features, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eagle_chat.core import masks
from eagle_chat.core.errors import HeadMismatchError
from eagle_chat.core.heads.checkpoint import build_head, check_taps
from eagle_chat.core.heads.spec import default_taps
from eagle_chat.core.target import Target
from tests import tiny, zoo


@torch.inference_mode()
def run_chain(target: Target, tokens: list[int], taps: tuple[int, ...] = ()) -> Any:
    count = len(tokens)
    return target.forward(
        torch.tensor(tokens), torch.arange(count), masks.causal_matrix(count), target.new_cache(count), taps
    )


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_a_chain_gives_what_the_bare_model_gives(architecture: str) -> None:
    target = tiny.make_target(architecture)
    tokens = tiny.prompts(1, 30)[0]
    with torch.inference_mode():
        bare = target.model(torch.tensor([tokens]), output_hidden_states=True)
    taps = (2, 4, 5, -1)
    output = run_chain(target, tokens, taps)
    torch.testing.assert_close(output.logits, bare.logits[0], rtol=1e-4, atol=1e-4)
    expected = torch.cat([bare.hidden_states[tap][0] for tap in taps], dim=-1)
    torch.testing.assert_close(output.features, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("architecture", "attention"), zoo.PAIRS)
def test_every_node_of_a_tree_sees_its_own_path_alone(architecture: str, attention: str) -> None:
    """The row of each node equals that of a chain through its ancestors, on a prefix longer than the window."""
    target = zoo.target(architecture, attention)
    prefix, tokens, parents = tiny.prompts(1, 20)[0], [11, 12, 13, 14, 15, 16], [-1, 0, 0, 1, 2, 4]
    cache = target.new_cache(64)
    with torch.inference_mode():
        count = len(prefix)
        target.forward(torch.tensor(prefix), torch.arange(count), masks.causal_matrix(count), cache)
        cache.commit(list(range(count)))
        positions = torch.tensor(masks.depths(parents)) + count
        found = target.forward(torch.tensor(tokens), positions, masks.ancestor_matrix(parents), cache).logits
    for node in range(len(tokens)):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        expected = run_chain(target, prefix + [tokens[i] for i in path]).logits[-1]
        torch.testing.assert_close(found[node], expected, rtol=1e-4, atol=1e-4)


def test_a_mask_of_the_wrong_kind_would_be_noticed() -> None:
    """The check above can fail: with a full mask in place of the ancestors the rows differ."""
    target = tiny.make_target("llama")
    tokens, parents = [5, 6, 7], [-1, 0, 0]
    positions = torch.tensor(masks.depths(parents))
    with torch.inference_mode():
        right = target.forward(torch.tensor(tokens), positions, masks.ancestor_matrix(parents), target.new_cache(8))
        wrong = target.forward(torch.tensor(tokens), positions, masks.causal_matrix(3), target.new_cache(8))
    assert (right.logits[2] - wrong.logits[2]).abs().max() > 1e-2


def test_windows_by_kind_of_layer() -> None:
    assert tiny.make_target("llama").windows == {"full_attention": None}
    assert tiny.make_target("mistral-window").windows == {"sliding_attention": 8}
    assert tiny.make_target("gemma3").windows == {"full_attention": None, "sliding_attention": 8}


@pytest.mark.parametrize("layers", range(3, 9))
def test_default_taps_of_shallow_targets(layers: int) -> None:
    """Three distinct taps or a clear refusal, which names them."""
    target = tiny.make_target("llama", num_hidden_layers=layers)
    taps = default_taps(layers)
    if len(set(taps)) == 3 and min(taps) >= 0:
        assert build_head(tiny.head_files("eagle3", target), target)[0].spec.taps == taps
    else:
        with pytest.raises(HeadMismatchError, match="three different taps"):
            build_head(tiny.head_files("eagle3", target), target)


def test_explicit_taps_in_both_numberings() -> None:
    target = tiny.make_target("llama")
    ids = "eagle_aux_hidden_state_layer_ids"
    root = build_head(tiny.head_files("eagle3", target, **{ids: [1, 3, 6]}), target)[0]
    nested = build_head(tiny.head_files("eagle3", target, eagle_config={ids: [1, 3, 6]}), target)[0]
    assert root.spec.taps == (1, 3, 6)
    assert nested.spec.taps == (2, 4, 7)
    assert build_head(tiny.head_files("eagle3", target), target, (1, 2, 3))[0].spec.taps == (1, 2, 3)


@pytest.mark.parametrize("taps", [(1, 2, 9), (1, 1, 2), (-1, 2, 3)])
def test_taps_that_do_not_exist_are_refused(taps: tuple[int, int, int]) -> None:
    with pytest.raises(HeadMismatchError, match="three different taps of 0 to 8"):
        check_taps(taps, 8)
