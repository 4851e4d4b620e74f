from __future__ import annotations

import json

import pytest

from eagle_chat.core.events import Committed, Finished, Reported, Started
from eagle_chat.core.metrics import Metrics

KEYS = [
    "text", "token_ids", "finish_reason", "usage", "tau", "cycles", "accept_lengths", "accept_by_depth",
    "seconds", "tokens_per_second", "time_to_first_token", "seed", "config", "versions",
]  # fmt: skip


def started() -> Started:
    return Started(9, 0, "target", "head", "dynamic", {"depth": 3}, {"seed": 7}, "cpu", "float32", {"torch": "2"})


def cycle(number: int, accepted: int, levels: list[bool], num_nodes: int = 8, text: str = "x") -> Committed:
    tokens = list(range(accepted + 1))
    seconds = {"draft": 0.25, "verify": 0.5, "sample": 0.1, "commit": 0.1, "other": 0.05}
    return Committed(number, tokens, ["draft"] * accepted + ["target"], text, num_nodes, accepted, seconds, levels)


def prefill() -> Committed:
    return Committed(0, [5], ["target"], "a", 0, 0, {"prefill": 0.42})


def run(*events: Committed | Finished) -> Metrics:
    metrics = Metrics()
    for event in (started(), prefill(), *events):
        metrics.add(event)
    return metrics


def test_summary_of_a_run() -> None:
    metrics = run(
        cycle(1, 2, [True, True, False]),
        cycle(2, 0, [False]),
        cycle(3, 3, [True, True, True]),
        Finished("length", "end", 3, 9),
    )
    summary = metrics.summary()
    assert list(summary) == KEYS
    assert summary["text"] == "axxxend"
    assert summary["token_ids"] == [5, 0, 1, 2, 0, 0, 1, 2, 3]
    assert summary["finish_reason"] == "length"
    assert summary["usage"] == {"prompt_tokens": 9, "completion_tokens": 9}
    assert summary["tau"] == pytest.approx(8 / 3)
    assert summary["cycles"] == 3
    assert summary["accept_lengths"] == {"0": 1, "2": 1, "3": 1}
    assert summary["accept_by_depth"] == [2 / 3, 1.0, 0.5]
    assert list(summary["seconds"]) == ["prefill", "draft", "verify", "sample", "commit", "other"]
    assert summary["seconds"]["prefill"] == 0.42
    assert summary["seconds"]["verify"] == 1.5
    assert summary["tokens_per_second"] == pytest.approx(8 / 3.0)
    assert summary["time_to_first_token"] == 0.42
    assert summary["seed"] == 7
    assert summary["config"]["tree"] == {"depth": 3}
    assert summary["versions"] == {"torch": "2"}
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_stats_line_as_documented() -> None:
    metrics = run(*(cycle(i, 2, [True, i % 2 == 0, False, False]) for i in range(1, 11)), Finished("stop", "", 10, 31))
    line = "31 tok · 3.0 tok/s · τ 3.00 (10 cycles) · accept 1.00/0.50/0.00 · draft 25% verify 50%"
    assert metrics.stats_line() == f"{line} · TTFT 0.42s · seed 7"
    assert metrics.stats_line(ascii=True) == metrics.stats_line().replace("·", "|").replace("τ", "tau")
    assert metrics.stats_line(ascii=True).isascii()


def test_stats_line_says_why_an_answer_was_cut() -> None:
    assert run(cycle(1, 0, []), Finished("length", "", 1, 2)).stats_line().endswith("· ended by length")


def test_nothing_happened() -> None:
    metrics = Metrics()
    assert list(metrics.summary()) == KEYS
    assert metrics.stats_line() == "0 tok"
    metrics.add(started())
    metrics.add(Finished("length", "", 0, 0))
    assert metrics.tau is None
    assert metrics.summary()["tokens_per_second"] is None
    assert metrics.summary()["time_to_first_token"] is None
    assert metrics.stats_line() == "0 tok · seed 7 · ended by length"


def test_only_the_prefill_token() -> None:
    metrics = run(Finished("stop", "", 0, 1))
    assert (metrics.tau, metrics.cycles, metrics.accept_by_depth) == (None, 0, [])
    assert metrics.stats_line() == "1 tok · TTFT 0.42s · seed 7"


def test_plain_decoding_has_tau_one_and_no_warning() -> None:
    metrics = run(*(cycle(i, 0, [], num_nodes=1) for i in range(1, 101)))
    assert metrics.tau == 1.0
    assert metrics.accept_by_depth == []
    assert "accept" not in metrics.stats_line()
    assert metrics.weak_head_warning is None


@pytest.mark.parametrize(
    ("cycles", "accepting", "warned"),
    [(49, 0, False), (50, 0, True), (50, 4, True), (50, 5, False), (200, 10, True)],
)
def test_weak_head_warning(cycles: int, accepting: int, warned: bool) -> None:
    metrics = run(*(cycle(i, int(i <= accepting), [i <= accepting]) for i in range(1, cycles + 1)))
    warning = metrics.weak_head_warning
    assert (warning is not None) == warned
    if warning:
        assert warning.startswith("this head does not seem to fit this target")
        assert "\n" not in warning


def test_plain_cycles_do_not_hide_a_good_head() -> None:
    plain = [cycle(i, 0, [], num_nodes=1) for i in range(1, 1000)]
    drafted = [cycle(i, 1, [True]) for i in range(1000, 1060)]
    assert run(*plain, *drafted).weak_head_warning is None


def test_several_runs_add_up() -> None:
    metrics = run(*(cycle(i, 0, [False]) for i in range(1, 31)), Finished("stop", "", 30, 31))
    assert metrics.weak_head_warning is None
    for event in (started(), prefill(), *(cycle(i, 0, [False]) for i in range(1, 31))):
        metrics.add(event)
    assert metrics.finish_reason is None
    assert metrics.weak_head_warning is not None


def test_reports_of_a_server_stand_in_for_cycles_and_replace_each_other() -> None:
    metrics = Metrics()
    piece = {"levels": [], "pieces": []}
    for answer in range(2):
        metrics.add(Started(0, 0, "t", None, "server", {}, {}, "vllm", "", {}))
        metrics.add(Committed(0, [-1], ["target"], "a", 0, 0, {"prefill": 0.5}, **piece))
        metrics.add(Reported(prompt_tokens=9))
        metrics.add(Committed(1, [-1, -1], ["target"] * 2, "b", 0, 0, {"other": 0.5}, **piece))
        assert metrics.prompt_tokens == 9
        metrics.add(Reported(0, 9, 5, 15, 4, [5, 3, 1], [3, 1, 0]))
        metrics.add(Reported(0, 9, 10, 30, 10, [10, 6, 3], [6, 3, 1]))
        metrics.add(Finished("stop", "", 0, 3))
        assert metrics.cycles == 10 * (answer + 1)
    assert metrics.tau == 2.0
    assert metrics.counts_by_depth == [(20, 12), (12, 6), (6, 2)]
    assert metrics.drafted_tokens == 60
    assert metrics.tokens_per_second == 4.0
    line = metrics.stats_line()
    assert "τ 2.00 (20 cycles)" in line
    assert "verify" not in line
