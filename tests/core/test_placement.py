"""Targets spread over devices by accelerate, as far as one CPU can show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from eagle_chat import SamplingConfig, TreeConfig, load_engine
from eagle_chat.core import loading, placement
from eagle_chat.core.config import LoadConfig
from eagle_chat.core.errors import UserError
from eagle_chat.core.heads.checkpoint import build_head
from eagle_chat.core.target import Target
from tests import tiny
from tests.core.test_loading import save_head, save_tokenizer

SAMPLING = SamplingConfig(max_new_tokens=12, ignore_stop_ids=True)
TREE = TreeConfig("dynamic", depth=3, top_k=3, total_tokens=8)


@pytest.fixture
def base(tmp_path: Path) -> str:
    tiny.make_model("llama").save_pretrained(tmp_path / "target")
    save_tokenizer(tmp_path / "target")
    return str(tmp_path / "target")


def parts(**places: str) -> dict[str, str]:
    """A device map of the tiny llama: everything on the CPU but what is given ("layers_7": a layer)."""
    names = ["model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"]
    names += [f"model.layers.{index}" for index in range(tiny.LAYERS)]
    given = {f"model.{name.replace('_', '.')}": place for name, place in places.items()}
    return dict.fromkeys(names, "cpu") | given


@pytest.mark.parametrize("draft", ["eagle", "eagle3"])
def test_device_map_auto_where_all_fits_in_one_place(base: str, draft: str, tmp_path: Path) -> None:
    save_head(tmp_path / draft, tiny.head_files(draft, tiny.make_target("llama")))
    engine = load_engine(base=base, draft=str(tmp_path / draft), dtype="float32", device_map="auto")
    prompt = tiny.prompts(1)[0]
    assert tiny.answer(engine, prompt, sampling=SAMPLING, tree=TREE) == tiny.generate(engine.target.model, prompt, 12)


def test_parts_on_the_disk_are_refused_with_the_reason(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The map is one that accelerate really follows: two layers stay in the file."""
    spread: Any = parts(layers_6="disk", layers_7="disk")
    config = LoadConfig(base=base, draft="none", dtype="float32")
    object.__setattr__(config, "device_map", spread)
    with pytest.raises(UserError) as caught:
        load_engine(config)
    message = str(caught.value)
    assert "model.layers.6, model.layers.7" in message
    assert "disk" in message
    assert "--load-in-4bit" in message


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_weights_that_rest_elsewhere_are_fetched_and_the_text_is_the_same(kind: str) -> None:
    """accelerate's offloading, with the CPU as the device that computes: between forwards the weights are on "meta"."""
    from accelerate import cpu_offload

    model = tiny.make_model("llama")
    prompt = tiny.prompts(1)[0]
    expected = tiny.generate(model, prompt, 12)
    cpu_offload(model, execution_device=torch.device("cpu"))
    assert next(model.parameters()).device.type == "meta"
    target = Target(model, "offloaded")
    assert target.device.type == "cpu"
    head, _ = build_head(tiny.head_files(kind, tiny.make_target("llama")), target)
    assert head.device.type == "cpu"
    assert tiny.answer(tiny.make_engine(target, head), prompt, sampling=SAMPLING, tree=TREE) == expected


class _Spread(nn.Module):
    """The shape of a model whose embedding and tied LM head are on one device and whose last layer is on another."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1, device="meta")])
        self.lm_head = nn.Linear(1, 1)

    def get_decoder(self) -> nn.Module:
        return self

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head


def test_the_head_belongs_beside_the_last_layer() -> None:
    assert placement.last_layer_device(_Spread()).type == "meta"


def test_the_hook_knows_where_a_module_computes() -> None:
    from accelerate.hooks import AlignDevicesHook, SequentialHook, add_hook_to_module

    single, chained = nn.Linear(1, 1), nn.Linear(1, 1)
    add_hook_to_module(single, AlignDevicesHook(execution_device="meta"))
    add_hook_to_module(chained, SequentialHook(AlignDevicesHook(), AlignDevicesHook(execution_device="meta")))
    assert placement.run_device(single).type == placement.run_device(chained).type == "meta"
    assert placement.run_device(nn.Linear(1, 1)).type == "cpu"


def test_parts_in_main_memory_are_remarked_on() -> None:
    mixed = parts(layers_5="0", layers_6="0", layers_7="0")
    (note,) = placement.placement_notes(mixed)
    assert "slow" in note
    assert "6 more parts" in note
    assert placement.placement_notes(parts()) == []
    assert placement.placement_notes({}) == []
    placement.check_placement(mixed)


def test_a_device_beside_a_device_map_is_a_contradiction() -> None:
    with pytest.raises(UserError, match="only one"):
        loading.choose_device(LoadConfig(device="cpu", device_map="auto"))
