from __future__ import annotations

import pytest

from eagle_chat.core.costs import CostTable
from eagle_chat.core.pace import LONGEST_REST, MEMORY, Pace

COSTS = CostTable({1: 2.0, 8: 3.0}, first=0.5, level={1: 0.5})


def cycle(pace: Pace, seconds: float, tokens: int) -> None:
    pace.plan(seconds)
    pace.record(tokens)


def rests_until_the_next_draft(pace: Pace) -> int:
    count = 0
    while pace.rests:
        pace.record(1)
        count += 1
    return count


def test_the_rate_comes_to_what_is_produced() -> None:
    pace = Pace(COSTS)
    assert 0.5 < pace.rate < 1.0
    for _ in range(5 * MEMORY):
        cycle(pace, 4.0, 3)
    assert pace.rate == pytest.approx(0.75, rel=0.01)
    for _ in range(5 * MEMORY):
        pace.record(1)  # plain steps
    assert pace.rate == pytest.approx(0.5, rel=0.01)


def test_drafts_that_pay_are_never_given_up() -> None:
    pace = Pace(COSTS)
    for _ in range(200):
        cycle(pace, 3.0, 3)
        assert not pace.rests


def test_drafts_that_do_not_pay_are_given_up_for_ever_longer() -> None:
    pace = Pace(COSTS)
    drafts = 0
    while not pace.rests:
        cycle(pace, 3.0, 1)
        drafts += 1
        assert drafts < 20
    rests = [rests_until_the_next_draft(pace)]
    for _ in range(6):
        cycle(pace, 3.0, 1)
        rests.append(rests_until_the_next_draft(pace))
    assert rests[:4] == [4, 8, 16, 32]
    assert rests[-1] == LONGEST_REST


def test_one_attempt_that_pays_ends_the_rest() -> None:
    pace = Pace(COSTS)
    for _ in range(4):
        while not pace.rests:
            cycle(pace, 3.0, 1)
        rests_until_the_next_draft(pace)
    cycle(pace, 3.0, 4)
    assert not pace.rests
    while not pace.rests:
        cycle(pace, 3.0, 1)
    assert rests_until_the_next_draft(pace) == 4


def test_a_bad_cycle_among_good_ones_is_forgiven() -> None:
    pace = Pace(COSTS)
    for _ in range(30):
        cycle(pace, 3.0, 3)
        cycle(pace, 2.5, 1)
        assert not pace.rests
