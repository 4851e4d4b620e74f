from __future__ import annotations

import math
import random

import pytest
import torch

from eagle_chat.core.calibration import Calibration
from eagle_chat.core.tree import DraftTree, Drawn
from eagle_chat.core.verification import Acceptance


def one_level(chances: list[float], right: int | None, kept: int = 1) -> tuple[DraftTree, Acceptance]:
    """A root with a child of each chance, of which the first `kept` were sent, and what the target chose."""
    count = len(chances)
    logs = [math.log(chance) for chance in chances]
    slots = [place + 1 if place < kept else -1 for place in range(count)]
    drawn = Drawn(list(range(10, 10 + count)), [0] * count, logs, logs, list(range(count)), slots, logs)
    tree = DraftTree([0, *range(10, 10 + kept)], [-1] + [0] * kept, [0.0] * (kept + 1), drawn=drawn)
    return tree, Acceptance([0], 99, {0: 99 if right is None else 10 + right})


def test_nothing_changes_before_something_was_seen() -> None:
    chances = torch.tensor([[0.9, 0.3], [0.01, 1e-9]]).log()
    assert torch.equal(Calibration().adjust(chances), chances)


@pytest.mark.parametrize("truth", [0.2, 0.8])
def test_values_come_to_what_is_really_chosen(truth: float) -> None:
    """The head says one half; the target agrees less or more often. Children that were not kept count too."""
    draws, calibration = random.Random(1), Calibration()
    for _ in range(400):
        calibration.observe(*one_level([0.5, 0.1], 0 if draws.random() < truth else None, kept=0))
    value = float(calibration.adjust(torch.tensor([[0.5]]).log()).exp())
    assert value == pytest.approx(truth, abs=0.07)
    untouched = torch.tensor([[0.9]]).log()
    assert torch.equal(calibration.adjust(untouched), untouched)  # other chances were not judged


def test_no_child_outweighs_its_parent() -> None:
    calibration = Calibration()
    for _ in range(50):
        calibration.observe(*one_level([0.4], 0))
    assert float(calibration.adjust(torch.tensor([[0.45]]).log())) <= 0.0


def test_only_children_of_nodes_whose_token_is_known_are_judged() -> None:
    tree, acceptance = one_level([0.5], 0)
    drawn = tree.drawn
    assert drawn is not None
    unreached = Acceptance([], 0, {})
    calibration = Calibration()
    calibration.observe(tree, unreached)
    calibration.observe(DraftTree.of_root(5), Acceptance([0], 1, {0: 1}))
    chances = torch.tensor([[0.5]]).log()
    assert torch.equal(calibration.adjust(chances), chances)
    calibration.observe(tree, acceptance)
    assert float(calibration.adjust(chances)) > float(chances)


def test_a_list_is_corrected_as_a_tensor_is() -> None:
    draws, calibration = random.Random(2), Calibration()
    for _ in range(60):
        calibration.observe(*one_level([draws.random(), 0.01], 0 if draws.random() < 0.3 else None))
    chances = [0.0, -1e-9, *(-draws.expovariate(0.5) for _ in range(200)), -1e6]
    found = calibration.adjusted(chances)
    expected = calibration.adjust(torch.tensor(chances)).tolist()
    close = [one == pytest.approx(other, rel=1e-5, abs=1e-6) for one, other in zip(found, expected, strict=True)]
    assert sum(close) >= len(close) - 1, "but for one that lies on the border of a class"


def test_ranks_are_counted() -> None:
    calibration = Calibration()
    before = calibration.by_rank(3)
    for _ in range(200):
        calibration.observe(*one_level([0.3, 0.2, 0.1], 1))
    shares = calibration.by_rank(3)
    assert shares[1] > 0.9 > before[1]
    assert shares[0] < 0.05
    assert len(calibration.by_rank(20)) == 20
