from __future__ import annotations

import random
import statistics

import pytest

from eagle_chat.bench.figures import FEWEST, LEVEL, Compared, bootstrap, run_figures, speedups, step_costs
from eagle_chat.bench.runner import Measured, pooled
from tests.bench.parts import QUESTIONS, candidate, cycle, scripted

ONE, TWO = QUESTIONS[0], QUESTIONS[1]
PLAIN_STEP = (0.0, 0.08, 0.01, 0.0, 0.01)  # 0.1 s for one token
CYCLE = (0.03, 0.10, 0.01, 0.004, 0.006)  # 0.15 s


def plain_answers() -> list:
    return [scripted(question, *(cycle(n, [n], PLAIN_STEP) for n in range(1, 5)), nodes=1) for question in (ONE, TWO)]


def drafted_answers() -> list:
    """Question 1: 4 tokens in two cycles; question 2: 4 tokens in four."""
    pairs = scripted(ONE, cycle(1, [1, 2], CYCLE, [True, False]), cycle(2, [3, 4], CYCLE, [True, False]))
    singles = scripted(TWO, *(cycle(n, [n], CYCLE, [False]) for n in range(1, 5)))
    return [pairs, singles]


def test_figures_are_those_computed_by_hand() -> None:
    found = Compared(drafted_answers(), plain_answers(), 0, "greedy").figures()
    assert found["tau"] == pytest.approx(8 / 6)
    assert found["tokens_per_second"] == pytest.approx(8 / (6 * 0.15))
    # Plain: 10 tokens/s. Question 1: 4 tokens in 0.3 s, question 2: 4 in 0.6 s.
    assert found["speedup"] == pytest.approx((4 / 3 + 2 / 3) / 2)
    assert found["c"] == pytest.approx(
        {"total": 0.5, "draft": 0.3, "verify": 0.2, "sample": 0.0, "commit": 0.04, "other": -0.04}
    )
    assert found["step_seconds"] == pytest.approx(0.15)
    assert (found["questions"], found["tokens"], found["cycles"]) == (2, 10, 6)
    assert found["prefill"] == {"tokens": 20, "seconds": 1.0}


def test_speed_is_tau_over_one_plus_c() -> None:
    drafted, plain = pooled(drafted_answers()), pooled(plain_answers())
    costs = step_costs(drafted, plain)
    assert costs is not None
    assert drafted.tau is not None
    assert drafted.tokens_per_second == pytest.approx(plain.tokens_per_second * drafted.tau / (1 + costs["total"]))
    assert costs["total"] == pytest.approx(sum(value for stage, value in costs.items() if stage != "total"))


def test_pairs_are_of_the_same_question_whatever_the_order() -> None:
    assert speedups(drafted_answers()[::-1], plain_answers()) == pytest.approx([2 / 3, 4 / 3])
    assert speedups(drafted_answers(), plain_answers()[1:]) == pytest.approx([2 / 3])


def test_without_a_decoding_cycle_there_are_no_figures_and_no_failure() -> None:
    empty = [scripted(ONE)]
    found = Compared(empty, empty, 0, "greedy").figures()
    assert [found[name] for name in ("tau", "tokens_per_second", "speedup", "speedup_interval", "c")] == [None] * 5


def test_a_run_has_its_keys_and_its_categories() -> None:
    candidates = [candidate("plain"), candidate("dynamic")]
    measured = Measured(candidates, [plain_answers(), drafted_answers()], [ONE, TWO], False, [])
    run = run_figures(measured, 1)
    assert list(run)[:10] == [
        "policy", "tree", "temperature", "tau", "tokens_per_second", "speedup", "speedup_interval", "c",
        "accept_lengths", "by_category",
    ]  # fmt: skip
    assert list(run["c"]) == ["total", "draft", "verify", "sample", "commit", "other"]
    assert run["accept_lengths"] == {"0": 4, "1": 2}
    assert run["accept_by_depth"] == pytest.approx([2 / 6, 0.0])
    assert run["by_category"]["letters"]["speedup"] == pytest.approx(4 / 3)
    assert run["by_category"]["numbers"]["tau"] == 1.0
    assert run["by_category"]["numbers"]["speedup_interval"] is None  # a single question
    assert run["same_text"] == {"equal": 2, "of": 2, "first_different": None}
    assert run["peak_memory_bytes"] == 1000
    plain = run_figures(measured, 0)
    assert plain["speedup"] == 1.0
    assert plain["speedup_interval"] is None  # two are too few
    assert set(plain["c"].values()) == {0.0}


def test_a_text_that_differs_is_counted_but_not_under_rejection() -> None:
    other = [drafted_answers()[0], scripted(TWO, cycle(1, [9, 9, 9, 9], CYCLE))]
    same = Compared(other, plain_answers(), 0, "coupled").same_text()
    assert same == {"equal": 1, "of": 2, "first_different": 2}
    assert Compared(other, plain_answers(), 0, "rejection").same_text() is None


def test_bootstrap_on_known_data() -> None:
    assert bootstrap([1.5]) is None
    assert bootstrap([2.0] * 10) == (2.0, 2.0)
    for count in range(FEWEST + 1):  # fewer cannot enclose the median with that probability, whatever they are
        assert (bootstrap([1.0 + place for place in range(count)]) is None) == (2 * 0.5**count > 1 - LEVEL)
    # Half of the values are low, half high: so are the medians of the resamples, but for those in the middle.
    assert bootstrap([1.0] * 5 + [3.0] * 5) == (1.0, 3.0)
    values = [1.0] * 95 + [9.0] * 5
    assert bootstrap(values) == (1.0, 1.0)  # outliers do not move a median
    assert bootstrap(values, seed=1) == bootstrap(values, seed=1)


def test_bootstrap_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    generator, covered = random.Random(7), 0
    for trial in range(100):
        interval = bootstrap([generator.gauss(1.3, 0.2) for _ in range(25)], seed=trial)
        assert interval is not None
        covered += interval[0] <= 1.3 <= interval[1]
    assert 88 <= covered <= 100


def test_bootstrap_interval_narrows_with_more_questions() -> None:
    generator = random.Random(3)
    widths = []
    for count in (10, 160):
        values = [generator.gauss(1.0, 0.1) for _ in range(count)]
        low, high = bootstrap(values) or (0.0, 0.0)
        assert low <= statistics.median(values) <= high
        widths.append(high - low)
    assert widths[1] < widths[0] / 2
