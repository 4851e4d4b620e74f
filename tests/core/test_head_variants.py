"""Flags and tensors that would change what a head computes are refused by name; what is not applied is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from eagle_chat.core.errors import HeadMismatchError, UserError
from eagle_chat.core.heads.checkpoint import Checkpoint, build_head, read_checkpoint
from eagle_chat.core.heads.variants import FLAGS
from tests.tiny import HIDDEN, head_files, make_target

TARGET = make_target()
UNWANTED = {"quantization_config": {"quant_method": "fp8"}, "partial_rotary_factor": 0.5, "parallel_draft_step": 2}


@pytest.mark.parametrize("place", ["root", "eagle_config"])
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, flags in FLAGS.items() for name in flags])
def test_a_flag_that_is_not_built_is_refused_by_name(kind: str, name: str, place: str) -> None:
    wanted = FLAGS[kind][name]
    unwanted = UNWANTED.get(name, not wanted)

    def files(value: Any) -> Checkpoint:
        return head_files(kind, TARGET, **({name: value} if place == "root" else {"eagle_config": {name: value}}))

    assert build_head(files(wanted), TARGET)[1] == []
    with pytest.raises(HeadMismatchError, match=f"with {name} {wanted} expected, found .*not supported") as caught:
        build_head(files(unwanted), TARGET)
    assert "\n" not in str(caught.value)


def test_the_config_that_modelopt_writes_is_taken() -> None:
    eagle_config = {
        "eagle_aux_hidden_state_layer_ids": [], "use_aux_hidden_state": True, "use_mtp_layernorm": False,
        "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "parallel_draft_step": 1,
        "next_layer_regular": True,
    }  # fmt: skip
    head, notes = build_head(head_files("eagle3", TARGET, eagle_config=eagle_config), TARGET)
    assert head.spec.taps == (2, 4, 5)
    assert notes == []


@pytest.mark.parametrize("kind", FLAGS)
def test_windows_of_a_head_are_refused(kind: str) -> None:
    files = head_files(kind, TARGET, layer_types=["sliding_attention"])
    with pytest.raises(HeadMismatchError, match="layer_types sliding_attention"):
        build_head(files, TARGET)
    assert build_head(head_files(kind, TARGET, layer_types=["full_attention"]), TARGET)[1] == []


def test_what_a_config_copied_from_its_target_is_told() -> None:
    files = head_files("eagle3", TARGET, scale_emb=12, sliding_window=4096, logits_scaling=None)
    _, notes = build_head(files, TARGET)
    assert len(notes) == 1
    assert "has scale_emb, sliding_window of its target" in notes[0]


@pytest.mark.parametrize("kind", FLAGS)
@pytest.mark.parametrize("name", ["self_attn.q_norm.weight", "self_attn.sinks", "mlp.up_proj.weight_scale"])
def test_a_tensor_inside_the_layer_that_is_not_used_is_refused(kind: str, name: str) -> None:
    files, layer = head_files(kind, TARGET), "midlayer." if kind == "eagle3" else "layers.0."
    more = Checkpoint(files.config, {**files.tensors, f"{layer}{name}": torch.ones(8)})
    with pytest.raises(HeadMismatchError, match=rf"found also {layer}{name}: this variant is not supported"):
        build_head(more, TARGET)


def test_a_layer_of_experts_is_named() -> None:
    files = head_files("eagle3", TARGET)
    tensors = {name: value for name, value in files.tensors.items() if ".mlp." not in name}
    tensors |= {f"midlayer.mlp.experts.{i}.w1.weight": torch.ones(4, HIDDEN) for i in range(9)}
    with pytest.raises(HeadMismatchError, match=r"lacks midlayer\.mlp\.gate_proj\.weight and holds mid") as caught:
        build_head(Checkpoint(files.config, tensors), TARGET)
    assert "experts.5.w1.weight and 3 more instead" in str(caught.value)


def test_missing_and_surplus_are_told_together() -> None:
    files = head_files("eagle3", TARGET)
    tensors = dict(files.tensors)
    tensors["final_norm.weight"] = tensors.pop("midlayer.hidden_norm.weight")
    with pytest.raises(
        HeadMismatchError, match=r"lacks midlayer\.hidden_norm\.weight and holds final_norm\.weight inst"
    ):
        build_head(Checkpoint(files.config, tensors), TARGET)


@pytest.mark.parametrize("kind", FLAGS)
@pytest.mark.parametrize("shape", [(), (0, 8), (3, 4, 5), (7,)])
def test_what_is_no_matrix_is_refused(kind: str, shape: tuple[int, ...]) -> None:
    files = head_files(kind, TARGET)
    for name in ("fc.weight", next(name for name in files.tensors if "k_proj" in name)):
        damaged = Checkpoint(files.config, {**files.tensors, name: torch.zeros(shape)})
        with pytest.raises(HeadMismatchError, match=f"a matrix expected in {name}"):
            build_head(damaged, TARGET)


@pytest.mark.parametrize("heads", [3, 5, 32, 64, 10**12])
def test_attention_heads_that_do_not_go_with_the_rows(heads: int) -> None:
    """32 rows of queries, 16 of keys: 32 heads of one number could not be rotated."""
    with pytest.raises(HeadMismatchError, match=f"divides 32 rows of queries and 16 of keys expected .* {heads}"):
        build_head(head_files("eagle3", TARGET, num_attention_heads=heads), TARGET)


@pytest.mark.parametrize(
    "scaling", [{"rope_type": "llama3"}, {"type": "linear", "factor": "b"}, {"rope_type": "longrope", "factor": 2.0}]
)
def test_incomplete_rope_is_refused(scaling: dict[str, Any]) -> None:
    with pytest.raises(HeadMismatchError, match="complete parameters of RoPE expected") as caught:
        build_head(head_files("eagle3", TARGET, rope_scaling=scaling), TARGET)
    assert "\n" not in str(caught.value)


# Several files.


def in_parts(folder: Path, names: tuple[str, str] = ("a.safetensors", "b.safetensors")) -> Checkpoint:
    files = head_files("eagle3", TARGET)
    weight_map = {name: names[index % 2] for index, name in enumerate(files.tensors)}
    (folder / "config.json").write_text(json.dumps(files.config))
    whole = "model.safetensors" if names[0].endswith(".safetensors") else "pytorch_model.bin"
    (folder / f"{whole}.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for part in names:
        tensors = {name: files.tensors[name] for name, place in weight_map.items() if place == part}
        save = save_file if whole.endswith(".safetensors") else torch.save
        save(tensors, folder / Path(part).name)
    return files


@pytest.mark.parametrize("names", [("a.safetensors", "b.safetensors"), ("a.bin", "b.bin")])
def test_a_head_in_parts_is_read_whole(tmp_path: Path, names: tuple[str, str]) -> None:
    files = in_parts(tmp_path, names)
    read = read_checkpoint(tmp_path)
    assert set(read.tensors) == set(files.tensors)
    assert all(torch.equal(read.tensors[name], files.tensors[name]) for name in files.tensors)
    (tmp_path / names[1]).unlink()
    with pytest.raises(UserError, match="cannot be read as plain tensors"):
        read_checkpoint(tmp_path)


def test_parts_that_hold_objects_are_not_run(tmp_path: Path) -> None:
    in_parts(tmp_path, ("a.bin", "b.bin"))
    torch.save({"fc.weight": Path()}, tmp_path / "b.bin")  # any object that is no tensor
    with pytest.raises(UserError, match="it holds objects that are not tensors"):
        read_checkpoint(tmp_path)


def test_parts_outside_the_folder_are_not_read(tmp_path: Path) -> None:
    in_parts(tmp_path, ("a.safetensors", "../b.safetensors"))
    with pytest.raises(UserError, match=r"parts in the same folder expected, found '\.\./b\.safetensors'"):
        read_checkpoint(tmp_path)
