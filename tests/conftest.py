"""Fixtures shared by all tests."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from eagle_chat.core import machine
from eagle_chat.core.embedded import ensure_embedded

# Tiny matrices: a second thread costs more in waiting than it gives.
torch.set_num_threads(1)

# How long an example takes says more about a busy machine than about the code.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


@pytest.fixture(autouse=True, scope="session")
def obeyed_ctrl_c() -> None:
    """What runs in the background of a script inherits that Ctrl-C is ignored; tests and what they start must not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test measures is remembered: it must not depend on who else uses the processor just then."""
    monkeypatch.setattr(machine, "_switches", lambda: 0)


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The embedded default model, fetched and converted once per machine."""
    return ensure_embedded()
