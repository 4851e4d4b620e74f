"""τ and c of a short run, plain and drafted answers in turn, against what is expected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from eagle_chat.bench.figures import run_figures
from eagle_chat.bench.plan import Candidate
from eagle_chat.bench.prompts import Question
from eagle_chat.bench.report import EXACT_DTYPE
from eagle_chat.bench.runner import Asker, Measured, measure
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.engine import Engine
from eagle_chat.core.events import STAGES
from eagle_chat.core.metrics import WEAK_HEAD_TAU
from eagle_chat.core.progress import Report
from eagle_chat.doctor.findings import Finding, ok

GROUP = "run"
LOW = 0.8
"""Share of the expected τ below which something is wrong: questions differ by less."""


CAUSES = {
    "verify": (
        "several tokens at once cost this machine much more than one",
        "--total-tokens -1 measures what pays here, --policy none drafts nothing",
    ),
    "draft": ("the head is slow beside this target", "--depth 2, or a smaller --top-k"),
}
"""Stage that makes a cycle expensive -> cause and remedy."""


def measure_pair(
    engine: Engine, questions: Sequence[Question], tokens: int, tree: TreeConfig, report: Report
) -> Measured:
    """Plain and drafted answers (plain ones alone without a head) to the same questions, greedy."""
    sampling = SamplingConfig(max_new_tokens=tokens)
    plans = [Candidate("plain", TreeConfig(policy="none"), sampling)]
    if engine.head is not None:
        shape = tree if tree.policy != "none" else TreeConfig()
        plans.append(Candidate(shape.policy or engine.defaults.policy or "dynamic", shape, sampling))
    return measure([Asker(engine)], plans, questions, report)


def check_speed(engine: Engine, measured: Measured, expected_tau: float | None) -> Iterator[Finding]:
    """What drafting gives on this machine."""
    plain = run_figures(measured, 0)
    yield ok(GROUP, "plain", f"{_number(plain['tokens_per_second'], '.1f')} tok/s without a draft", **_leading(plain))
    if len(measured.candidates) == 1:
        return
    drafted = run_figures(measured, 1)
    yield from _check_text(drafted, str(engine.target.dtype).removeprefix("torch."))
    yield from _check_tau(drafted, expected_tau)
    yield from _check_gain(drafted)


def _check_text(drafted: dict[str, Any], dtype: str) -> Iterator[Finding]:
    same = drafted["same_text"]
    found = f"{same['equal']} of {same['of']} drafted answers equal plain decoding"
    if same["equal"] == same["of"]:
        yield ok(GROUP, "lossless", found, **same)
    elif dtype == EXACT_DTYPE:
        cause = "a fault of this program, or numbers so close that float32 cannot tell them apart"
        yield Finding(GROUP, "lossless", "error", found, cause, "eagle-chat verify tells which of the two", same)
    else:
        cause = f"in {dtype} a tree is rounded differently than a single token, and two best tokens were that close"
        yield Finding(
            GROUP, "lossless", "note", found, cause, "eagle-chat verify proves it, --dtype float32 ends it", same
        )


def _check_tau(drafted: dict[str, Any], expected: float | None) -> Iterator[Finding]:
    tau, nodes = drafted["tau"], drafted["tree"].get("total_tokens")
    if tau is None:
        return
    found = f"τ {tau:.2f} with {drafted['policy']} {nodes} ({drafted['cycles']} cycles)"
    figures = {"tau": tau, "expected": expected, "cycles": drafted["cycles"]}
    if tau < WEAK_HEAD_TAU:
        cause = "the head was made for another target, reads other layers, or is untrained"
        remedy = "give the head made for this target (--draft), or --draft none"
        yield Finding(GROUP, "tau", "warning", found, cause, remedy, figures)
    elif expected is not None and tau < LOW * expected:
        cause = "wrong taps, another template or number format than in training, or unusual questions"
        remedy = "look at taps, template and dtype above; eagle-chat bench measures more questions"
        yield Finding(GROUP, "tau", "warning", f"{found}, {expected:.2f} expected", cause, remedy, figures)
    else:
        yield ok(GROUP, "tau", found + (f", {expected:.2f} expected" if expected is not None else ""), **figures)


def _check_gain(drafted: dict[str, Any]) -> Iterator[Finding]:
    gain, costs = drafted["speedup"], drafted["c"]
    if gain is None or costs is None:
        return
    figures = {"speedup": gain, "c": costs}
    found = f"{gain:.2f} times plain decoding: a cycle costs {1 + costs['total']:.2f} plain steps"
    if gain >= 1.0:
        yield ok(GROUP, "speed", found, **figures)
        return
    stage = max(STAGES, key=lambda name: costs[name])
    cause, remedy = CAUSES.get(stage, (f"most of the time goes to {stage}", "eagle-chat bench shows more"))
    yield Finding(GROUP, "speed", "warning", found, f"{cause} ({stage} {costs[stage]:+.2f})", remedy, figures)


def _leading(run: dict[str, Any]) -> dict[str, Any]:
    return {name: run[name] for name in ("tokens_per_second", "step_seconds")}


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
