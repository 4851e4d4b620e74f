from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from eagle_chat.core import cost_measuring as module
from eagle_chat.core.cost_measuring import CONTEXTS, SIZES, Costs, context_class, measure
from eagle_chat.core.costs import CostTable
from tests.tiny import make_head, make_target

TARGET = make_target()
HEAD = make_head("eagle3", TARGET)
TABLE = CostTable({1: 10.0, 4: 16.0, 8: 15.0, 16: 31.0}, first=1.0, level={1: 2.0, 4: 5.0})


def test_costs_lie_on_lines_between_the_measured_sizes() -> None:
    assert TABLE.most_nodes == 16
    assert TABLE.verify_by_nodes[1:5] == pytest.approx([10.0, 12.0, 14.0, 16.0])
    assert TABLE.verify_by_nodes[12] == pytest.approx(23.0)
    assert [TABLE.level_seconds(rows) for rows in (1, 2, 4, 9)] == pytest.approx([2.0, 3.0, 5.0, 5.0])


def test_more_nodes_never_cost_less() -> None:
    """Eight measured faster than four is noise."""
    seconds = TABLE.verify_by_nodes
    assert seconds == sorted(seconds)
    assert len(seconds) == 17
    assert seconds[8] == 16.0


def test_the_cheapest_node() -> None:
    assert TABLE.cheapest_node == pytest.approx((16.0 - 10.0) / 7)
    assert CostTable({1: 1.0}, 1.0, {1: 1.0}).cheapest_node == 0.0


def test_a_table_survives_json() -> None:
    assert CostTable.from_json(json.loads(json.dumps(TABLE.as_json()))) == TABLE


ONE = {"1": 1.0}


@pytest.mark.parametrize(
    "damaged",
    [
        None,
        3,
        "x",
        [],
        {},
        {"verify": {}, "first": 1, "level": ONE},
        {"verify": {"2": 1}, "first": 1, "level": ONE},
        {"verify": {"1": -1}, "first": 1, "level": ONE},
        {"verify": {"1": "a"}, "first": 1, "level": ONE},
    ],
)
def test_a_damaged_table_is_none(damaged: object) -> None:
    assert CostTable.from_json(damaged) is None


def test_classes_of_context() -> None:
    assert [context_class(tokens) for tokens in (1, 128, 129, 600, 10**6)] == [128, 128, 512, 2048, CONTEXTS[-1]]


def test_what_is_measured() -> None:
    """With a clock that counts its readings every forward takes 1, so nothing is found too dear."""
    ticks = itertools.count()
    table = measure(TARGET, HEAD, 20, clock=lambda: float(next(ticks)))
    assert table == CostTable(dict.fromkeys(SIZES, 1.0), 1.0, dict.fromkeys(module.ROWS, 1.0))


def test_a_head_with_a_small_vocabulary_is_measured_too() -> None:
    head = make_head("eagle3", TARGET, draft_vocab=3)
    table = measure(TARGET, head, 20)
    assert set(table.level) == set(module.ROWS)
    assert min(table.level.values()) > 0


def test_trees_that_cannot_pay_are_not_measured() -> None:
    """Each forward takes twice as long as the one before it."""

    class Clock:
        now, step, begun = 0.0, 1.0, False

        def __call__(self) -> float:
            if self.begun:
                self.now += self.step
                self.step *= 2
            self.begun = not self.begun
            return self.now

    table = measure(TARGET, HEAD, 20, clock=Clock())
    assert table.most_nodes < SIZES[-1]


def test_the_least_of_several_rounds_counts() -> None:
    """A slow moment during one round leaves no trace."""
    ticks = itertools.count()
    slow = iter([False] * 40 + [True] * 10 + [False] * 1000)

    def clock() -> float:
        return float(next(ticks)) if not next(slow) else float(next(ticks)) ** 2

    assert set(measure(TARGET, HEAD, 20, clock=clock).verify.values()) == {1.0}


def test_a_context_as_long_as_the_model_allows() -> None:
    assert measure(TARGET, HEAD, TARGET.context_limit * 4).verify[1] > 0


def test_tables_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE_CHAT_CACHE", str(tmp_path))
    measured: list[int] = []

    def fake(target: object, head: object, context: int) -> CostTable:
        measured.append(context)
        return TABLE

    monkeypatch.setattr(module, "measure", fake)
    first = Costs(TARGET, HEAD)
    assert first.table(50) is first.table(90)
    assert first.table(300) == TABLE
    assert Costs(TARGET, HEAD).table(60) == TABLE
    assert measured == [128, 512]
    other_head = make_head("eagle3", TARGET, draft_vocab=20)
    Costs(TARGET, other_head).table(60)
    assert measured == [128, 512, 128]
    (tmp_path / "machine.json").write_text("not json")
    Costs(TARGET, HEAD).table(60)
    assert measured == [128, 512, 128, 128]
