"""Files that people rely on: written whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eagle_chat.core.errors import EagleChatError, UserError, first_line

PRIVATE, PUBLIC = 0o600, 0o644


def write_atomic(path: Path, content: str | bytes, mode: int = PRIVATE) -> None:
    """Make `content` (text as UTF-8) that of `path`; whoever reads meanwhile, or starts after a kill, finds the old
    content or the new.

    `mode`: rights of the file, by default its owner's alone. Folders that are missing are made. EagleChatError where
    that is not possible.
    """
    data = content.encode("utf-8", errors="backslashreplace") if isinstance(content, str) else content
    path = path.expanduser()
    target = path.resolve() if path.is_symlink() else path  # a link stays a link
    if target.exists() and not target.is_file():  # a device would be replaced by a file
        raise EagleChatError(f"{path} was to be written, found something else than a file there: give another name")
    temporary = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if mode == PRIVATE else 0o777)
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode != PRIVATE:  # which mkstemp makes it
            Path(temporary).chmod(mode)
        Path(temporary).replace(target)
    except OSError as error:
        raise EagleChatError(
            f"{path} was to be written, which failed ({error.strerror}): check the folder and the space left"
        ) from error
    finally:
        if temporary:
            with contextlib.suppress(FileNotFoundError):  # it has been moved into place
                Path(temporary).unlink()


def read_object(path: Path, what: str, remedy: str) -> dict[str, Any]:
    """The JSON object in a file. UserError where it holds anything else than `what`."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{what} expected in {path}, found none to read ({first_line(error)}): {remedy}") from error
    if not isinstance(found, dict):
        raise UserError(f"{what} expected in {path}, found JSON of another kind ({type(found).__name__}): {remedy}")
    return found


def make_folder(folder: Path) -> None:
    """Make a folder where it is missing. UserError where it cannot be made or written into."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # rights alone do not tell: the disk may be read-only
            pass
    except OSError as error:
        raise UserError(
            f"a folder to write into expected, found {folder} ({error.strerror}): give another path"
        ) from error


@contextlib.contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """While entered, no other process may enter for this folder, which is made where it is missing. The system frees
    what a killed process held. UserError where another one is in it, or nothing can be written there."""
    from filelock import FileLock, Timeout

    make_folder(folder)
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout as error:
        raise UserError(
            f"a folder that nothing else writes into expected, found another run at work in {folder}: wait for it, or "
            "give another --out"
        ) from error
