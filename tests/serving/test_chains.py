from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle_chat.core.errors import UserError
from eagle_chat.serving import chains


def test_expected_tau_adds_up_the_chances_of_getting_that_far() -> None:
    assert chains.expected_tau([0.5, 0.4], 1) == pytest.approx(1.5)
    assert chains.expected_tau([0.5, 0.4], 2) == pytest.approx(1.7)
    assert chains.expected_tau([0.5, 0.4], 4) == pytest.approx(1.7 + 0.08 + 0.032)  # the last share stays


@pytest.mark.parametrize(
    ("acceptance", "cost", "length"),
    [
        ([1.0], 0.1, chains.LONGEST),
        ([0.0], 0.1, 1),
        ([0.8, 0.75, 0.7], 0.05, 6),
        ([0.5], 0.5, 1),
        ([0.47, 0.44, 0.38], 0.07, 2),
    ],
)
def test_the_length_is_where_speed_is_highest(acceptance: list[float], cost: float, length: int) -> None:
    assert chains.best_length(acceptance, cost) == length
    speeds = [chains.expected_tau(acceptance, n) / (1 + n * cost) for n in range(1, chains.LONGEST + 1)]
    assert max(speeds) == speeds[length - 1]


@pytest.mark.parametrize(
    ("figures", "found"),
    [
        ({"live": {"accept_by_depth": [0.7, 0.6]}, "offline": {"by_step": [0.1]}}, [0.7, 0.6]),
        ({"live": {"accept_by_depth": []}, "offline": {"by_step": [0.5]}}, [0.5]),
        ({"held_out_top1_acceptance_by_step": [0.4]}, [0.4]),
        ({"live": {"accept_by_depth": ["a"]}}, None),
        ([1], None),
    ],
)
def test_measured_acceptance_is_found_beside_the_head(
    tmp_path: Path, figures: object, found: list[float] | None
) -> None:
    assert chains.measured_acceptance(tmp_path) is None
    (tmp_path / chains.FIGURES).write_text(json.dumps(figures), encoding="utf-8")
    assert chains.measured_acceptance(tmp_path) == found


@pytest.mark.parametrize("text", ["", "a", "0.5,", "1.5", "-0.1", "nan"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--acceptance"):
        chains.parse_acceptance(text)
    assert chains.parse_acceptance("0.5,0.25") == [0.5, 0.25]
