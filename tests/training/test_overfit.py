"""From text to a head that drafts: one sample overfitted, exported, loaded for a chat, measured live."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import eagle_chat
from eagle_chat.core import masks
from eagle_chat.core.chat import Message
from eagle_chat.core.config import LoadConfig, SamplingConfig, TreeConfig
from eagle_chat.core.engine import Engine
from eagle_chat.core.heads.checkpoint import read_checkpoint
from eagle_chat.training import evaluate
from eagle_chat.training.checkpoints import RunFolder
from eagle_chat.training.export import export
from eagle_chat.training.fit import fit
from eagle_chat.training.view import Silent
from tests.tiny import answer
from tests.training.tiny_run import config, save_target

DEPTH = 3
GREEDY = SamplingConfig(max_new_tokens=28, ignore_stop_ids=True)


def silent(*_: Any) -> None:
    """Says nothing."""


@pytest.fixture(scope="module", params=["eagle3", "eagle"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Engine]:
    """A folder with the run and the exported head, fitted to the one answer its target gives; and the engine."""
    folder = tmp_path_factory.mktemp(request.param)
    save_target(folder / "target")
    plain = eagle_chat.load_engine(base=str(folder / "target"), draft="none", dtype="float32", device="cpu")
    question, said = writable_answer(plain)
    row = {"prompt": question, "response": said, "ended": False}
    (folder / "data.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    eagle3 = request.param == "eagle3"
    run = config(
        folder, head=request.param, steps=70, unroll=(DEPTH,) if eagle3 else (2,), classification_weight=1.0, noise=0.0,
        learning_rate=5e-3, draft_vocab=50, norm_before_fc=eagle3, norm_output=eagle3,
    )  # fmt: skip
    fit(run, silent, silent, Silent())
    export(folder / "run", folder / "head")
    return folder, load(folder)


def writable_answer(engine: Engine) -> tuple[str, str]:
    """A question, and the target's greedy answer to it, that holds letters only: marks are no text."""
    for number in range(1000):
        question = f"Hello {number}?"
        ids = answer(engine, engine.chat.encode([{"role": "user", "content": question}]), sampling=GREEDY)
        if min(ids) > 3:
            return question, engine.chat.decode(ids)
    raise AssertionError("no answer without marks")


def question_of(folder: Path) -> list[Message]:
    return [{"role": "user", "content": json.loads((folder / "data.jsonl").read_text())["prompt"]}]


def load(folder: Path) -> Engine:
    return eagle_chat.load_engine(
        LoadConfig(base=str(folder / "target"), draft=str(folder / "head"), dtype="float32", device="cpu")
    )


def test_live_tau_is_near_its_bound(trained: tuple[Path, Engine]) -> None:
    folder, engine = trained
    result = evaluate.live(engine, [question_of(folder)], TreeConfig("chain", depth=DEPTH), GREEDY, DEPTH)
    assert result.tau > 0.8 * (DEPTH + 1)
    assert result.warning is None
    assert result.chain_tau == pytest.approx(result.replayed_chain_tau)


def test_a_replayed_chain_is_exact_also_where_drafts_fail(trained: tuple[Path, Engine]) -> None:
    _, engine = trained
    others = [[{"role": "user", "content": text}] for text in ("What?", "zz")]
    result = evaluate.live(engine, others, TreeConfig("chain", depth=DEPTH), GREEDY, DEPTH)
    assert 1.0 <= result.chain_tau < 0.9 * (DEPTH + 1)
    assert result.chain_tau == pytest.approx(result.replayed_chain_tau)


def test_a_mismatch_of_training_and_inference_is_told(trained: tuple[Path, Engine]) -> None:
    folder, engine = trained
    assert engine.head is not None
    good = evaluate.replayed_chain
    weight: torch.Tensor = engine.head.fc.weight
    trained_weight = weight.detach().clone()

    @torch.no_grad()
    def before(*arguments: Any) -> int:  # what was trained is not what runs
        weight.copy_(trained_weight)
        cycles = good(*arguments)
        weight.mul_(-1.0)
        return cycles

    with torch.no_grad():
        weight.mul_(-1.0)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(evaluate, "replayed_chain", before)
            result = evaluate.live(engine, [question_of(folder)], TreeConfig("chain", depth=DEPTH), GREEDY, DEPTH)
    finally:
        with torch.no_grad():
            weight.copy_(trained_weight)
    assert result.warning is not None
    assert "do not compute the same" in result.warning


@torch.no_grad()
def test_draft_logits_equal_the_trainers(trained: tuple[Path, Engine]) -> None:
    folder, engine = trained
    assert engine.head is not None
    saved = RunFolder(folder / "run").load(folder / "run" / "last.pt")
    objective = evaluate.objective_for(engine)
    objective.head.load_state_dict({name: value.bfloat16() for name, value in saved["weights"].items()})
    tokens = engine.chat.encode(question_of(folder))
    states = engine.target.model(input_ids=torch.tensor([tokens]), output_hidden_states=True).hidden_states
    taken = torch.cat([states[tap] for tap in engine.head.spec.taps], dim=-1)[0, :-1]
    mask = masks.causal_matrix(len(tokens) - 1)
    logits = []
    for head in (engine.head, objective.head):
        output = head(
            torch.tensor(tokens[1:]), head.fuse(taken), torch.arange(len(tokens) - 1), mask, head.new_cache(64)
        )
        logits.append(head.logits(output))
    torch.testing.assert_close(logits[0], logits[1], atol=1e-5, rtol=1e-5)
    if saved["draft_ids"] is not None:
        assert torch.equal(engine.head.draft_ids, saved["draft_ids"])


def test_the_exported_layout(trained: tuple[Path, Engine]) -> None:
    folder, engine = trained
    found = read_checkpoint(folder / "head")
    kind = engine.head.spec.architecture if engine.head else ""
    assert all(value.dtype == torch.bfloat16 for name, value in found.tensors.items() if name not in ("d2t", "t2d"))
    assert found.config["architectures"] == ["LlamaForCausalLMEagle3" if kind == "eagle3" else "LlamaForCausalLM"]
    assert found.config["num_hidden_layers"] == 1
    assert found.config["rope_theta"] == 10000.0
    if kind == "eagle3":
        assert found.config["draft_vocab_size"] == 50
        assert found.config["norm_output"] is True
        assert found.tensors["d2t"].dtype == torch.int64
        assert found.tensors["t2d"].dtype == torch.bool
        assert int(found.tensors["t2d"].sum()) == 50
        assert "midlayer.hidden_norm.weight" in found.tensors
    else:
        assert {"fc.weight", "layers.0.self_attn.q_proj.weight"} <= found.tensors.keys()
    card = (folder / "head" / "README.md").read_text(encoding="utf-8")
    assert "answer tokens" in card
    assert "learning_rate = 0.005" in card


def test_training_goes_on_from_an_exported_head(trained: tuple[Path, Engine], tmp_path: Path) -> None:
    folder, engine = trained
    kind = engine.head.spec.architecture if engine.head else ""
    run = config(
        folder, head=kind, out=str(tmp_path / "run"), from_head=str(folder / "head"), steps=1, learning_rate=1e-9,
        unroll=(1,), draft_vocab=60,
    )  # fmt: skip
    fit(run, silent, silent, Silent())
    fresh = config(folder, head=kind, out=str(tmp_path / "fresh"), steps=1, unroll=(1,), draft_vocab=60)
    fit(fresh, silent, silent, Silent())
    taken, new = (RunFolder(path).curve()[0]["acceptance"][0] for path in (tmp_path / "run", tmp_path / "fresh"))
    assert taken > new + 0.3
