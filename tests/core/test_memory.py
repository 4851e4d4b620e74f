"""Memory: what a pair takes against what it really takes, and what a container leaves."""

from __future__ import annotations

from pathlib import Path

import torch

from eagle_chat.core.memory import container_room, need, weight_bytes
from eagle_chat.core.target import Target
from tests import tiny


def test_weights_take_what_their_tensors_take() -> None:
    target = tiny.make_target()
    head = tiny.make_head("eagle3", target)
    real = sum(p.numel() * p.element_size() for p in target.model.parameters())
    found = need(target, head, None)
    assert found.target == real
    assert found.head == sum(p.numel() * p.element_size() for p in head.parameters())
    cache = target.new_cache(target.context_limit)
    head_cache = head.new_cache(target.context_limit)
    rows = [layer.owner.allocate(torch.empty(1, 2, 1, 8)) for layer in cache.tree_layers for _ in range(2)]
    rows += [layer.owner.allocate(torch.empty(1, 2, 1, 8)) for layer in head_cache.tree_layers for _ in range(2)]
    assert found.caches == sum(row.numel() * row.element_size() for row in rows)
    assert found.total == found.target + found.head + found.caches


def test_caches_are_float32_where_a_cpu_computes_in_it() -> None:
    target = Target(tiny.make_model("llama").bfloat16(), "tiny")
    assert need(target, None, None, on_cpu=True).caches == 2 * need(target, None, None).caches
    cache = target.new_cache(8)
    target.forward(torch.tensor([3]), torch.tensor([0]), torch.ones(1, 1, dtype=torch.bool), cache)
    assert cache.tree_layers[0].keys is not None
    assert cache.tree_layers[0].keys.dtype is torch.float32
    other = Target(tiny.make_model("gemma3").bfloat16(), "tiny")
    assert need(other, None, None, on_cpu=True).caches == need(other, None, None).caches


def test_quantised_weights_take_less_and_the_embeddings_as_much() -> None:
    target = tiny.make_target()
    eight, four = weight_bytes(target, 8), weight_bytes(target, 4)
    kept = 4 * 2 * tiny.VOCAB * tiny.HIDDEN  # embedding and LM head, float32
    assert kept < four < eight < weight_bytes(target, None)


def test_a_container_counts_cached_files_as_free(tmp_path: Path) -> None:
    assert container_room(tmp_path) is None
    for name, text in (("memory.max", "1000\n"), ("memory.current", "700\n"), ("memory.stat", "anon 400\nfile 300\n")):
        (tmp_path / name).write_text(text)
    assert container_room(tmp_path) == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert container_room(tmp_path) is None
