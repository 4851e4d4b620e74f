"""Where conversations and the history of the input lie, each readable by its owner only."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from eagle_chat.core.errors import UserError

SUFFIX = ".json"


def data_folder() -> Path:
    """Conversations that were saved by name."""
    from platformdirs import user_data_path

    return user_data_path("eagle-chat", appauthor=False) / "conversations"


def state_folder() -> Path:
    """What the program keeps for itself: the input's history, the last conversation."""
    from platformdirs import user_state_path

    return user_state_path("eagle-chat", appauthor=False)


def last_conversation() -> Path:
    """Written after every turn, so that a crash loses nothing."""
    return state_folder() / "last.json"


def previous_conversation() -> Path:
    """The one that was the last before this."""
    return state_folder() / "previous.json"


def rotate() -> None:
    """Make room for a new last conversation: the present one becomes the previous one."""
    with contextlib.suppress(OSError):
        last_conversation().replace(previous_conversation())


def history_file() -> Path | None:
    """The input's history, made with mode 0600; None where it cannot be kept."""
    path = state_folder() / "history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        path.chmod(0o600)  # it may be older than this rule
    except OSError:
        return None
    return path


def place(name: str) -> Path:
    """The file that a person means: a bare name is one of the saved conversations, anything else a path."""
    if not name:
        raise UserError("a name expected, found none: give /save NAME, or a path")
    if re.fullmatch(r"[\w -]+", name):
        kept = {"last": last_conversation(), "previous": previous_conversation()}
        return kept.get(name, data_folder() / f"{name}{SUFFIX}")
    return Path(name).expanduser()


def saved_names() -> list[str]:
    """The conversations saved by name, the newest first."""
    try:
        files = [path for path in data_folder().iterdir() if path.suffix == SUFFIX]
        files.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return []
    return [path.stem for path in files]
