"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle_chat.core.embedded import ensure_embedded


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The embedded default model, fetched and converted once per machine."""
    return ensure_embedded()
