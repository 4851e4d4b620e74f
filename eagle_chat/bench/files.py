"""Whether a file can be written, asked before a long measurement."""

from __future__ import annotations

import os
from pathlib import Path

from eagle_chat.core.errors import UserError


def check_writable(path: Path, option: str) -> None:
    """UserError where `path` cannot become a file: better before a long measurement than after it."""
    folder = path.parent
    if not folder.is_dir():
        raise UserError(f"a folder expected at {folder}, found none: make it, or change {option}")
    if path.exists() and not path.is_file():  # a folder; or a device, which a file must not replace
        raise UserError(f"a file's name expected, found something else at {path}: change {option}")
    if not os.access(folder, os.W_OK):
        raise UserError(f"a folder that can be written expected, found {folder}: change {option}")
