"""The layout of the `speculators` library: another form of the same head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from eagle_chat.core.errors import UserError
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.heads.checkpoint import build_head, read_checkpoint
from eagle_chat.core.target import Target
from eagle_chat.training.export import published_config, published_tensors, target_facts
from eagle_chat.training.speculators import speculators_config, speculators_tensors
from tests.tiny import head_files, make_head, make_target

NORMS = {f"fc_norm.{tap}.weight": torch.rand(32) + 0.5 for tap in range(3)}


def both_layouts(head: DraftHead, target: Target, folder: Path, chain: int = 4) -> tuple[DraftHead, DraftHead, Any]:
    """The head read again from the published layout and from the other one, and the other one's config."""
    tensors = published_tensors(head.spec, head.state_dict(), head.draft_ids, target.vocab_size)
    facts = target_facts(target, None)
    config = published_config(head.spec, facts)
    other = speculators_config(head.spec, config, facts, chain)
    read = []
    for name, (values, told) in {"a": (tensors, config), "b": (speculators_tensors(tensors), other)}.items():
        place = folder / name
        place.mkdir()
        save_file(values, place / "model.safetensors")
        (place / "config.json").write_text(json.dumps(told), encoding="utf-8")
        made, notes = build_head(read_checkpoint(place), target)
        assert notes == []
        read.append(made)
    return read[0], read[1], other


@pytest.mark.parametrize("norms", [False, True], ids=["plain", "eagle3.1"])
def test_the_head_is_the_same_in_both_layouts(norms: bool, tmp_path: Path) -> None:
    target = make_target()
    files = head_files(
        "eagle3", target, draft_vocab=40, rope_theta=5e4, **({"fc_norm": True, "norm_output": True} if norms else {})
    )
    if norms:
        files.tensors.update(NORMS)
    head, _ = build_head(files, target, (1, 4, 6))
    published, other, config = both_layouts(head, target, tmp_path)
    assert published.spec == other.spec
    assert other.spec.taps == (1, 4, 6)
    assert other.spec.rope["rope_theta"] == 5e4
    ours, theirs = published.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert torch.equal(published.draft_ids, other.draft_ids)  # type: ignore[arg-type]
    assert (config["fc_norm"], config["norm_output"], config["norm_before_fc"]) == (norms, norms, False)


def test_the_config_tells_what_vllm_asks_for(tmp_path: Path) -> None:
    target = make_target()
    *_, config = both_layouts(make_head("eagle3", target), target, tmp_path, chain=5)
    assert config["speculators_model_type"] == "eagle3"
    told = config["speculators_config"]
    assert told["proposal_methods"][0]["speculative_tokens"] == 5
    assert told["default_proposal_method"] == told["proposal_methods"][0]["proposal_type"]
    assert told["verifier"] == {"name_or_path": target.name, "architectures": ["LlamaForCausalLM"]}
    assert config["transformer_layer_config"]["model_type"] == "llama"
    # vLLM takes this one for granted where it is not said.
    assert config["norm_before_residual"] is False


def test_an_eagle_head_has_no_such_layout() -> None:
    target = make_target()
    facts = target_facts(target, None)
    spec = make_head("eagle", target).spec
    with pytest.raises(UserError, match="an eagle3 head expected for --layout speculators"):
        speculators_config(spec, published_config(spec, facts), facts, 3)
