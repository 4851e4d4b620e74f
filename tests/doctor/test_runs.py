"""What shows only when the pair runs: numbers, taps, tokenizer, speed."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.engine import Engine
from eagle_chat.core.events import Committed
from eagle_chat.doctor.findings import Finding
from eagle_chat.doctor.numbers import check_numbers, mean_surprise, run_text
from eagle_chat.doctor.speed import _check_gain, check_speed, measure_pair
from eagle_chat.doctor.taps import Reading, better, candidates, check_taps_measured, read
from tests import tiny
from tests.bench.parts import QUESTIONS, stub_engine
from tests.doctor.parts import Pair, grave, only


def test_a_good_pair_runs(tmp_path: Path) -> None:
    findings = Pair(tmp_path).ran()
    assert grave(findings) == []
    checks = {one.check: one for one in findings}
    assert {"numbers", "head numbers", "tokenizer", "taps", "plain", "lossless", "tau"} <= set(checks)
    assert checks["lossless"].severity == "ok"
    # Random weights know no English, and a random head is never right.
    assert checks["tokenizer"].severity == checks["tau"].severity == "warning"


def test_plain_decoding_runs(tmp_path: Path) -> None:
    findings = Pair(tmp_path).ran(draft="none")
    assert grave(findings) == []
    assert {"numbers", "plain"} <= {one.check for one in findings}


def test_a_target_that_overflows_in_half_precision(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    name = "model.layers.2.mlp.down_proj.weight"
    pair.change_tensors(pair.target, lambda tensors: tensors.update({name: tensors[name] * 30_000}))
    assert grave(pair.ran()) == []
    finding = only(pair.ran(dtype="float16"), "numbers", code=1)
    assert finding.values["layer"] == 3  # what comes out of layer 2
    assert "65,504" in finding.cause
    assert finding.remedy == "--dtype bfloat16"


def test_numbers_near_the_end_of_the_format(tmp_path: Path) -> None:
    engine = tiny.make_engine(tiny.make_target())
    seen = run_text(engine.target, [3, 4, 5])
    engine.target.dtype = torch.float16
    large = dataclasses.replace(seen, states=seen.states * (40_000 / float(seen.states.abs().max())))
    (finding,) = check_numbers(engine, large)
    assert finding.severity == "warning"
    assert finding.remedy == "--dtype bfloat16"


@pytest.mark.parametrize("what", ["target", "head"])
def test_weights_that_hold_nan(tmp_path: Path, what: str) -> None:
    pair = Pair(tmp_path)
    name = "model.layers.4.mlp.up_proj.weight" if what == "target" else "midlayer.mlp.up_proj.weight"
    folder = pair.target if what == "target" else pair.head
    pair.change_tensors(folder, lambda tensors: tensors[name].fill_(math.nan))
    finding = only(pair.ran(), "numbers" if what == "target" else "head numbers", code=1)
    assert name in finding.cause


def test_a_target_with_a_missing_weight(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    name = "model.layers.3.mlp.up_proj.weight"
    pair.change_tensors(pair.target, lambda tensors: tensors.pop(name))
    assert name in only(pair.ran(), "load", code=2).found


# Taps. The head is right where it is given the hidden states it was made for, which a real one learns.


class TapReader(tiny.StubHead):
    """Knows the answer, if it is fed the features that belong to `taps`."""

    def __init__(self, engine: Engine, script: list[int], taps: tuple[int, ...], mine: tuple[int, ...]) -> None:
        super().__init__(engine.target, script, lambda _: 0)
        self.spec = dataclasses.replace(self.spec, architecture="eagle3", taps=mine)
        seen = run_text(engine.target, script)
        self.expected = torch.cat([seen.states[tap] for tap in taps], dim=-1)

    def forward(self, tokens: Any, hidden: Any, positions: Any, among_new: Any, cache: Any) -> Any:
        right = torch.isclose(hidden, self.expected[: hidden.shape[0]], atol=1e-4).all(dim=-1)
        shifted = torch.where(right, positions.float(), positions.float() + 1)  # else it predicts the token after
        return super().forward(tokens, hidden, shifted, among_new, cache)


def tap_findings(made_for: tuple[int, ...], given: tuple[int, ...]) -> list[Finding]:
    engine = tiny.make_engine(tiny.make_target())
    prompt = tiny.prompts(1)[0]
    script = prompt + tiny.answer(engine, prompt, sampling=SamplingConfig(max_new_tokens=40))
    engine.head = TapReader(engine, script, made_for, given)
    return list(check_taps_measured(engine, [(run_text(engine.target, script), len(prompt))]))


def test_taps_that_are_right() -> None:
    (finding,) = tap_findings((2, 4, 5), (2, 4, 5))
    assert finding.severity == "ok"
    assert finding.values["readings"][0]["rate"] > 0.9


@pytest.mark.parametrize(
    ("made_for", "cause"), [((3, 5, 6), "outputs of layers"), ((1, 3, 4), "inputs of layers")], ids=["later", "earlier"]
)
def test_taps_shifted_by_the_other_numbering(made_for: tuple[int, ...], cause: str) -> None:
    (finding,) = tap_findings(made_for, (2, 4, 5))
    assert finding.severity == "warning"
    assert cause in finding.cause
    assert finding.remedy == f"--taps {','.join(map(str, made_for))}"


def test_taps_of_another_choice_where_the_defaults_are_right() -> None:
    (finding,) = tap_findings((2, 4, 5), (1, 6, 7))
    assert finding.remedy == "--taps 2,4,5"
    assert "other layers" in finding.cause


def test_first_choices_are_what_a_chain_of_one_accepts() -> None:
    engine = tiny.make_engine(tiny.make_target())
    prompt, sampling = tiny.prompts(1)[0], SamplingConfig(max_new_tokens=40)
    script = prompt + tiny.answer(engine, prompt, sampling=sampling)
    engine.head = tiny.StubHead(engine.target, script, lambda at: 0 if at % 3 else None)
    accepted: list[bool] = []
    for event in engine.stream(prompt, sampling=sampling, tree=TreeConfig("chain", depth=1)):
        if isinstance(event, Committed):
            accepted += event.levels[:1]
    reading = read(engine, [(run_text(engine.target, script), len(prompt))], (-1,), "in use")
    # A cycle that accepts goes two tokens on: the chain judges some of the positions.
    judged, at = [], 0
    while at < len(reading.right):
        judged.append(reading.right[at])
        at += 2 if reading.right[at] else 1
    assert {True, False} <= set(accepted)
    assert judged[: len(accepted)] == accepted[: len(judged)]


def test_taps_out_of_range_are_not_tried() -> None:
    assert [taps for taps, _ in candidates((0, 4, 8), 8)] == [(0, 4, 8), (2, 4, 5)]
    assert candidates((2, 4, 5), 8)[0] == ((2, 4, 5), "in use")


def test_a_small_difference_decides_nothing() -> None:
    one = Reading((1, 2, 3), "in use", (True, False, True, False))
    two = Reading((2, 3, 4), "other", (True, True, True, False))
    assert better(two, one) == 1.0
    assert better(one, one) == 0.0


# The tokenizer, measured.


def test_surprise_tells_the_right_tokens_from_permuted_ones() -> None:
    """A model of bigrams that has learnt one numbering of its tokens."""
    torch.manual_seed(0)
    size = 50
    table = torch.randn(size, size) * 4
    tokens = [0]
    for _ in range(200):
        tokens.append(int(table[tokens[-1]].softmax(-1).multinomial(1)))
    other = torch.randperm(size)[torch.tensor(tokens)].tolist()
    assert mean_surprise(table[tokens], tokens) < 0.6 * math.log(size)
    assert mean_surprise(table[other], other) > math.log(size)


# τ and c.


def speed_findings(kind: str, expected: float | None = None) -> dict[str, Finding]:
    engine = stub_engine(kind, QUESTIONS[1].turns[0])
    measured = measure_pair(engine, QUESTIONS[1:2], 40, TreeConfig("chain", depth=3), lambda *_: None)
    return {one.check: one for one in check_speed(engine, measured, expected)}


def test_a_head_that_is_right_and_one_that_never_is() -> None:
    good = speed_findings("oracle", expected=3.9)
    assert good["tau"].severity == good["lossless"].severity == "ok"
    bad = speed_findings("anti")
    assert bad["tau"].severity == "warning"
    assert "--draft" in bad["tau"].remedy
    assert bad["lossless"].severity == "ok"


def test_less_than_the_registry_expects() -> None:
    found = speed_findings("mix", expected=3.9)["tau"]
    assert found.severity == "warning"
    assert "3.90 expected" in found.found
    assert speed_findings("mix")["tau"].severity == "ok"


@pytest.mark.parametrize(
    ("gain", "stage", "severity", "remedy"),
    [(1.4, "verify", "ok", ""), (0.6, "verify", "warning", "--total-tokens -1"), (0.6, "draft", "warning", "--depth")],
)
def test_where_a_slow_cycle_spends_its_time(gain: float, stage: str, severity: str, remedy: str) -> None:
    costs = {"draft": 0.1, "verify": 0.1, "sample": 0.0, "commit": 0.0, "other": 0.0} | {stage: 2.0}
    (finding,) = _check_gain({"speedup": gain, "c": {"total": 2.1, **costs}})
    assert finding.severity == severity
    assert remedy in finding.remedy
    assert "3.10 plain steps" in finding.found
