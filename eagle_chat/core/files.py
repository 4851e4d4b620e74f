"""Files that people rely on: written whole or not at all, and readable by their owner only."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from eagle_chat.core.errors import EagleChatError


def write_atomic(path: Path, text: str) -> None:
    """Make `text` the content of `path`, with mode 0600; whoever reads meanwhile sees the old content or the new.

    Folders that are missing are made. EagleChatError where that is not possible.
    """
    path = path.expanduser()
    target = path.resolve() if path.is_symlink() else path  # a link stays a link
    if target.exists() and not target.is_file():  # a device would be replaced by a file
        raise EagleChatError(f"{path} was to be written, found something else than a file there: give another name")
    temporary = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # mkstemp makes it 0600
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(target)
    except OSError as error:
        raise EagleChatError(
            f"{path} was to be written, which failed ({error.strerror}): check the folder and the space left"
        ) from error
    finally:
        if temporary:
            with contextlib.suppress(FileNotFoundError):  # it has been moved into place
                Path(temporary).unlink()
