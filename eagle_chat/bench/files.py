"""Files for others to read (text or pictures, with ordinary rights) that appear whole or not at all."""

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


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write text (UTF-8) or bytes beside `path` and move it there, so that nobody ever reads half a file."""
    data = content.encode() if isinstance(content, str) else content
    path = path.resolve() if path.is_symlink() else path  # a link stays a link
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    except OSError as error:
        raise UserError(f"{path} could not be written ({error.strerror}): check the folder and the disk") from error
    finally:
        beside.unlink(missing_ok=True)
