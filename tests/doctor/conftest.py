"""No measurement of the processor in tests that are about other things."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _processor_likes_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle_chat.doctor.target.best_cpu_dtype", lambda *_: torch.float32)
