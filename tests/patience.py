"""How long tests wait for what must come: long, since the machine may be busy with other things."""

from __future__ import annotations

import os

PATIENCE = float(os.environ.get("TEST_PATIENCE", "240"))
"""Seconds after which a test gives up."""
