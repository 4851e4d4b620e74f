"""Losslessness of one target and head on this machine.

- Greedy, and above temperature 0 with the coupled rule: plain decoding must choose what the target alone chooses (plain
  causal forwards over the finished text), and every policy must give the tokens of plain decoding. A first difference
  is judged a tie or a fault.
- Above temperature 0: the tokens of every policy follow the target's own probabilities, under both rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from eagle_chat.bench.judge import Reference, Verdict, answer_rows, chosen_tokens
from eagle_chat.bench.law import LawTest
from eagle_chat.bench.plan import PLAIN, Candidate
from eagle_chat.bench.prompts import Question
from eagle_chat.bench.report import EXACT_DTYPE
from eagle_chat.bench.runner import Answer, Asker, DoesNotFit, Stopped
from eagle_chat.core import sampling
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.progress import Report

if TYPE_CHECKING:
    from eagle_chat.core.chat import Message

WORST = ("equal", "tie", "fault")


@dataclass(frozen=True)
class Check:
    """One answer against what it must equal. `position`: of the first difference, in answer tokens from 0;
    `expected` and `found`: the two tokens there (None where one of the answers had ended)."""

    question: Question
    turn: int
    policy: str
    tree: dict[str, Any]
    temperature: float
    rule: str
    verdict: Verdict
    position: int | None = None
    expected: int | None = None
    found: int | None = None
    gap: float | None = None
    gap_ulps: float | None = None
    tolerance_ulps: float | None = None


@dataclass
class Findings:
    """`laws` by (rule, policy, temperature). `notes`: questions that were left out."""

    checks: list[Check] = field(default_factory=list)
    laws: dict[tuple[str, str, float], LawTest] = field(default_factory=dict)
    partial: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether nothing at all was checked."""
        return not self.checks and not self.laws

    @property
    def faulty(self) -> bool:
        """Whether anything is not as the target alone would have it."""
        results = (test.result()["verdict"] for test in self.laws.values())
        return any(check.verdict == "fault" for check in self.checks) or "fault" in results


def examine(
    asker: Asker,
    questions: Sequence[Question],
    shapes: Sequence[tuple[str, TreeConfig]],
    configs: Sequence[SamplingConfig],
    report: Report = lambda *_: None,
) -> Findings:
    """Every question under every sampling config, by every policy of `shapes` (name and tree; without plain).

    Stopping keeps what was found.
    """
    findings = Findings()
    examiner = _Examiner(asker, shapes, findings)
    total = len(questions) * len(configs)
    try:
        for number, question in enumerate(questions):
            for place, config in enumerate(configs):
                done = number * len(configs) + place
                what = f"question {number + 1} of {len(questions)}: {_rule(config)}"
                report(what, done / total)
                # The noise belongs to (seed, position): another seed each time makes the draws independent.
                own = dataclasses.replace(config, seed=config.seed + number)
                try:
                    if _rule(config) == "rejection":
                        examiner.law_alone(question, own)
                    else:
                        examiner.equality(question, own)
                except DoesNotFit as error:
                    findings.notes.append(str(error))
    except Stopped:
        findings.partial = True
    return findings


def _rule(config: SamplingConfig) -> str:
    return "greedy" if config.greedy else config.verify


class _Examiner:
    """Asks one question at a time and writes down what it finds."""

    def __init__(self, asker: Asker, shapes: Sequence[tuple[str, TreeConfig]], findings: Findings) -> None:
        self._asker, self._findings = asker, findings
        self._shapes = [(PLAIN, TreeConfig(policy="none")), *shapes]
        self._target = asker.engine.target
        self._exact = asker.engine.describe()["dtype"] == EXACT_DTYPE

    def equality(self, question: Question, config: SamplingConfig) -> None:
        """All turns: plain against the target alone, every policy against plain, each in its own state.

        The conversation goes on with plain decoding's answers, so that a difference does not spoil the next turn.
        """
        conversations = [self._asker.begin() for _ in self._shapes]
        for turn in range(len(question.turns)):
            said = list(conversations[0].messages)
            prompt = self._prompt(said, question.turns[turn])
            answers = []
            for (policy, tree), conversation in zip(self._shapes, conversations, strict=True):
                conversation.messages[:] = said
                answers.append(self._asker.ask(question, turn, Candidate(policy, tree, config), conversation))
            plain = answers[0]
            rows = answer_rows(self._target, prompt, plain.token_ids) if plain.token_ids else None
            reference = Reference(self._target, prompt, plain.token_ids, config)
            if rows is not None:
                alone = chosen_tokens(rows, len(prompt), config)
                self._compare(plain, PLAIN, alone, reference, config)
            for answer, (policy, _) in zip(answers[1:], self._shapes[1:], strict=True):
                self._check(answer, plain, policy, reference, config)
            if not config.greedy:
                self._add_laws(answers, prompt, rows, config)

    def law_alone(self, question: Question, config: SamplingConfig) -> None:
        """First turn: the rejection rule promises the law, not the draw."""
        prompt = self._prompt(self._asker.begin().messages, question.turns[0])
        for policy, tree in self._shapes[1:]:
            answer = self._asker.ask(question, 0, Candidate(policy, tree, config), self._asker.begin())
            self._add_laws([answer], prompt, None, config, policy)

    def _prompt(self, said: Sequence[Message], text: str) -> list[int]:
        return self._asker.engine.chat.encode([*said, {"role": "user", "content": text}])

    def _check(self, answer: Answer, plain: Answer, policy: str, reference: Reference, config: SamplingConfig) -> None:
        same_tokens = answer.token_ids == plain.token_ids
        if same_tokens and (answer.text, answer.finished.reason) != (plain.text, plain.finished.reason):
            self._note(answer, policy, config, "fault", position=len(plain.token_ids))
            return
        self._compare(answer, policy, plain.token_ids, reference, config)

    def _compare(
        self, answer: Answer, policy: str, expected: list[int], reference: Reference, config: SamplingConfig
    ) -> None:
        found = answer.token_ids
        if expected == found:
            self._note(answer, policy, config, "equal")
            return
        pairs = zip(expected, found, strict=False)
        at = next((index for index, (left, right) in enumerate(pairs) if left != right), None)
        if at is None:
            self._note(answer, policy, config, "fault", position=min(len(expected), len(found)))
            return
        details = dataclasses.asdict(reference.judge(at, (expected[at], found[at])))
        self._note(answer, policy, config, position=at, expected=expected[at], found=found[at], **details)

    def _note(self, answer: Answer, policy: str, config: SamplingConfig, verdict: Verdict, **details: Any) -> None:
        about = (answer.question, answer.turn, policy, answer.started.tree, config.temperature, _rule(config))
        self._findings.checks.append(Check(*about, verdict, **details))

    def _add_laws(
        self,
        answers: Sequence[Answer],
        prompt: list[int],
        rows: Tensor | None,
        config: SamplingConfig,
        policy: str | None = None,
    ) -> None:
        """The drawn tokens of each answer. `rows`: the target's logits for the first of them, where known."""
        names = [policy] if policy is not None else [name for name, _ in self._shapes]
        for name, answer in zip(names, answers, strict=True):
            if not answer.token_ids:
                continue
            known = rows is not None and answer.token_ids == answers[0].token_ids
            own = rows if known and rows is not None else answer_rows(self._target, prompt, answer.token_ids)
            key = (_rule(config), name, config.temperature)
            test = self._findings.laws.setdefault(key, LawTest(self._exact))
            for row, token in zip(own, answer.token_ids, strict=True):
                test.add(sampling.warp(row, config).softmax(dim=-1), token)
