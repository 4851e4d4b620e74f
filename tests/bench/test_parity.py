"""`verify` finds what is wrong, and calls a tie a tie."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from eagle_chat.bench.judge import Reference, answer_rows, chosen_tokens
from eagle_chat.bench.parity import Findings, examine
from eagle_chat.bench.parity_report import parity_document, verdict_line
from eagle_chat.bench.prompts import Question
from eagle_chat.bench.runner import Asker
from eagle_chat.core import engine as engine_module
from eagle_chat.core import sampling
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.target import Target
from eagle_chat.core.verification import Acceptance
from tests.bench.parts import QUESTIONS, tiny_engine
from tests.laws import FAILS
from tests.tiny import VOCAB, answer, make_engine, make_head, make_model, make_target

SHAPES = [
    ("chain", TreeConfig("chain", depth=3)),
    ("dynamic", TreeConfig("dynamic", depth=3, top_k=3, total_tokens=8)),
]
GREEDY = SamplingConfig(max_new_tokens=16)
COUPLED = SamplingConfig(1.0, max_new_tokens=16)
REJECTION = dataclasses.replace(COUPLED, verify="rejection")

real_verify = engine_module.verify


def corrupt(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any, Any, int, Acceptance], Acceptance]) -> None:
    """Let the engine's verification pass through `change(tree, logits, position, acceptance)`."""

    def verify(tree: Any, logits: Any, position: int, config: SamplingConfig, *noise: Any) -> Acceptance:
        return change(tree, logits, position, real_verify(tree, logits, position, config, *noise))

    monkeypatch.setattr(engine_module, "verify", verify)


def with_bonus(acceptance: Acceptance, bonus: int) -> Acceptance:
    return dataclasses.replace(acceptance, bonus=bonus)


def verdicts(findings: Findings) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for check in findings.checks:
        found.setdefault(check.policy, set()).add(check.verdict)
    return found


def test_a_sound_pair_is_equal_everywhere_and_its_laws_fit() -> None:
    findings = examine(Asker(tiny_engine()), QUESTIONS[:2], SHAPES, [GREEDY, COUPLED, REJECTION])
    assert verdicts(findings) == {"plain": {"equal"}, "chain": {"equal"}, "dynamic": {"equal"}}
    assert len(findings.checks) == 2 * 3 * 3  # rules, policies with plain, turns
    assert {key[:2] for key in findings.laws} == {
        ("coupled", "plain"), ("coupled", "chain"), ("coupled", "dynamic"), ("rejection", "chain"),
        ("rejection", "dynamic"),
    }  # fmt: skip
    assert {test.result()["verdict"] for test in findings.laws.values()} == {"fits"}
    assert not findings.faulty


def test_a_fault_in_the_verification_of_trees_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(tree: Any, logits: Any, position: int, acceptance: Acceptance) -> Acceptance:
        wrong = len(tree) > 1 and position % 5 == 0
        return with_bonus(acceptance, (acceptance.bonus + 1) % VOCAB) if wrong else acceptance

    corrupt(monkeypatch, change)
    findings = examine(Asker(tiny_engine()), QUESTIONS[1:2], SHAPES, [GREEDY])
    assert verdicts(findings) == {"plain": {"equal"}, "chain": {"fault"}, "dynamic": {"fault"}}
    assert findings.faulty
    fault = next(check for check in findings.checks if check.verdict == "fault")
    assert fault.found == ((fault.expected or 0) + 1) % VOCAB
    assert fault.gap_ulps is not None
    assert fault.tolerance_ulps is not None
    assert fault.gap_ulps > 10 * fault.tolerance_ulps
    (prompt,) = parity_document({}, "t", "h", findings)["prompts"]
    assert (prompt["verdict"], prompt["position"]) == ("fault", fault.position)


def test_a_fault_that_plain_decoding_shares_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain answers are held against the target alone, so both being wrong alike does not help."""

    def change(tree: Any, logits: Any, position: int, acceptance: Acceptance) -> Acceptance:
        second = int(logits[acceptance.path[-1]].topk(2).indices[1])
        return with_bonus(acceptance, second) if (position + len(acceptance.path)) % 7 == 0 else acceptance

    corrupt(monkeypatch, change)
    findings = examine(Asker(tiny_engine()), QUESTIONS[1:2], SHAPES, [GREEDY])
    assert "fault" in verdicts(findings)["plain"]


def test_the_second_best_of_two_equal_logits_is_a_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    prompt = make_engine(Target(model, "t")).chat.encode([{"role": "user", "content": "one two"}])
    chosen = answer(make_engine(Target(model, "t")), prompt, sampling=GREEDY)[4]
    twin = next(token for token in range(3, VOCAB) if token != chosen)
    with torch.no_grad():
        model.lm_head.weight[twin] = model.lm_head.weight[chosen]

    def change(tree: Any, logits: Any, position: int, acceptance: Acceptance) -> Acceptance:
        swapped = {chosen: twin, twin: chosen}.get(acceptance.bonus, acceptance.bonus)
        return with_bonus(acceptance, swapped) if len(tree) > 1 else acceptance

    corrupt(monkeypatch, change)
    target = Target(model, "t")
    engine = make_engine(target, make_head("eagle3", target))
    findings = examine(Asker(engine), QUESTIONS[1:2], SHAPES, [GREEDY])
    assert verdicts(findings) == {"plain": {"equal"}, "chain": {"tie"}, "dynamic": {"tie"}}
    tie = next(check for check in findings.checks if check.verdict == "tie")
    assert tie.gap_ulps == 0.0
    assert {tie.expected, tie.found} == {chosen, twin}
    assert not findings.faulty


def judged(ways: list[list[float]], dtype: torch.dtype) -> str:
    """The verdict on tokens 0 and 1 after one prompt, of which each way of computing gives a row of logits."""
    target = make_target()
    target.dtype = dtype
    reference = Reference(target, [5], [0], GREEDY)
    reference._ways = [torch.tensor([row, row]) for row in ways]
    reference._extra = 0
    return reference.judge(0, (0, 1)).verdict


def test_float32_grants_no_rounding_that_was_not_seen() -> None:
    step = 2.0**-22  # of float32 between 2 and 4
    same = [3.0, 3.0 - step, 0.0]
    turned = [3.0 - step, 3.0, 0.0]
    assert judged([same] * 4, torch.float32) == "fault"
    assert judged([same] * 4, torch.bfloat16) == "tie"
    assert judged([same, same, turned, same], torch.float32) == "tie"
    assert judged([[3.0, 3.0, 0.0]] * 4, torch.float32) == "tie"
    assert judged([same, [2.0, 2.0, 9.0], same, same], torch.float32) == "fault"  # equal, and neither is the best


def test_bfloat16_may_part_at_ties_and_never_at_a_fault() -> None:
    target = make_target()
    target.model.bfloat16()
    target.dtype = torch.bfloat16
    engine = make_engine(target, make_head("eagle3", target))
    questions = [dataclasses.replace(QUESTIONS[1], id=number, turns=(f"question {number}",)) for number in range(2)]
    findings = examine(Asker(engine), questions, SHAPES, [dataclasses.replace(GREEDY, max_new_tokens=40), COUPLED])
    found = verdicts(findings)
    assert set().union(*found.values()) <= {"equal", "tie"}
    for check in findings.checks:
        if check.verdict == "tie":
            assert check.position is not None
            assert check.tolerance_ulps is not None
            assert check.tolerance_ulps >= 1.0


def test_an_answer_that_ends_early_is_a_fault() -> None:
    engine = tiny_engine()
    real = engine.stream

    def shorter(messages: Any, *, sampling: SamplingConfig, tree: TreeConfig, **more: Any) -> Any:
        if tree.policy == "chain":
            sampling = dataclasses.replace(sampling, max_new_tokens=12)
        return real(messages, sampling=sampling, tree=tree, **more)

    engine.stream = shorter
    findings = examine(Asker(engine), QUESTIONS[1:2], SHAPES, [GREEDY])
    (fault,) = [check for check in findings.checks if check.verdict == "fault"]
    assert (fault.policy, fault.position, fault.gap_ulps) == ("chain", 12, None)


WIDE = [dataclasses.replace(QUESTIONS[1], id=number, turns=(f"tell me {number}",)) for number in range(4)]


@pytest.mark.parametrize("rule", [COUPLED, REJECTION], ids=["coupled", "rejection"])
def test_a_rule_that_accepts_too_often_fails_the_test_of_the_law(
    monkeypatch: pytest.MonkeyPatch, rule: SamplingConfig
) -> None:
    """Every third time, the head's best child is taken unseen."""

    def change(tree: Any, logits: Any, position: int, acceptance: Acceptance) -> Acceptance:
        if len(tree) == 1 or position % 3:
            return acceptance
        bonus = sampling.draw(logits[1], position + 2, rule)
        return Acceptance([0, 1], bonus, {0: tree.tokens[1], 1: bonus})

    corrupt(monkeypatch, change)
    config = dataclasses.replace(rule, max_new_tokens=32)
    # Under shared noise that child often is the target's own choice, and taking it would be no fault.
    tree = dataclasses.replace(SHAPES[1][1], shared_noise=False)
    findings = examine(Asker(tiny_engine()), WIDE, [("dynamic", tree)], [config])
    result = findings.laws[rule.verify, "dynamic", 1.0].result()
    assert result["verdict"] == "fault"
    assert result["p_value"] < FAILS
    assert findings.faulty


def test_a_question_that_does_not_fit_is_not_called_lossless() -> None:
    engine = tiny_engine()
    long = Question("long", "letters", ("word " * engine.target.context_limit,))
    findings = examine(Asker(engine), [long], SHAPES, [GREEDY, COUPLED, REJECTION])
    assert findings.empty
    assert "question long was left out" in findings.notes[0]
    value = parity_document({}, "t", "h", findings)
    assert verdict_line(value) == "NOTHING WAS CHECKED"
    assert value["notes"] == findings.notes[:1]
    both = examine(Asker(engine), [long, QUESTIONS[1]], SHAPES, [GREEDY])
    assert [check.verdict for check in both.checks] == ["equal"] * 3


def test_stopping_keeps_what_was_found() -> None:
    engine, asked = tiny_engine(), []
    real = engine.stream
    engine.stream = lambda *args, **more: asked.append(1) or real(*args, **more)
    findings = examine(Asker(engine, stop=lambda: len(asked) > 6), QUESTIONS, SHAPES, [GREEDY])
    assert findings.partial
    assert {check.question.id for check in findings.checks} == {1}


def test_rows_are_those_of_the_answer_in_whatever_pieces() -> None:
    target = make_target()
    prompt, tokens = [5, 9, 30, 44], answer(make_engine(target), [5, 9, 30, 44], sampling=GREEDY)
    for piece in (None, 1, 4, 16, 100):
        rows = answer_rows(target, prompt, tokens, piece)
        assert rows.shape == (16, VOCAB)
        assert chosen_tokens(rows, 4, GREEDY) == tokens
    assert chosen_tokens(answer_rows(target, prompt, tokens[:1], 1), 4, GREEDY) == tokens[:1]


def test_a_token_that_a_warper_excludes_is_a_fault_without_a_gap() -> None:
    target = make_target()
    config = SamplingConfig(1.0, top_k=1)
    best = answer(make_engine(target), [5, 9, 30], sampling=GREEDY)
    result = Reference(target, [5, 9, 30], best, config).judge(3, (best[3], (best[3] + 1) % VOCAB))
    assert (result.verdict, result.gap, result.gap_ulps) == ("fault", None, None)
