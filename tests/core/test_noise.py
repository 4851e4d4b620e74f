from __future__ import annotations

import pytest
import torch

from eagle_chat.core import sampling
from eagle_chat.core.noise import TargetNoise
from eagle_chat.core.sampling import Stream


def test_it_is_the_noise_that_the_target_draws_with() -> None:
    noise = TargetNoise(5, 97, torch.device("cpu"))
    for position in (3, 4, 3):
        assert torch.equal(noise(position), sampling.gumbel(5, Stream.TARGET, position, 97))
    assert not torch.equal(noise(3), noise(4))


def test_each_position_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = sampling.gumbel

    def counted(seed: int, stream: Stream, position: int, *rest: object) -> torch.Tensor:
        asked.append(position)
        return real(seed, stream, position, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(sampling, "gumbel", counted)
    noise = TargetNoise(5, 97, torch.device("cpu"))
    for position in (7, 8, 9, 8, 7):
        noise(position)
    assert asked == [7, 8, 9]
    noise.forget_before(9)
    noise(9)
    noise(8)
    assert asked == [7, 8, 9, 8]
