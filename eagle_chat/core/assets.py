"""Where the files shipped with the program lie: heads, trees, prompts, recordings."""

from __future__ import annotations

from pathlib import Path

from eagle_chat.core.errors import EagleChatError

_PACKAGE = Path(__file__).resolve().parent.parent


def assets_root() -> Path:
    """The folder of shipped files: `<repository>/assets` in a checkout, else `eagle_chat/assets`."""
    checkout = _PACKAGE.parent
    # The checkout comes first: an editable install also holds a copy, as old as that install.
    if (checkout / "pyproject.toml").is_file() and (checkout / "assets").is_dir():
        return checkout / "assets"
    return _PACKAGE / "assets"


def asset_path(*parts: str) -> Path:
    """Path of a shipped file or folder, for example `asset_path("heads", "smollm2-135m-instruct", "eagle3")`.

    Raises EagleChatError naming the missing path when the installation is incomplete.
    """
    path = assets_root().joinpath(*parts)
    if not path.exists():
        raise EagleChatError(
            f"the file '{'/'.join(parts)}' that eagle-chat ships was expected at {path} and is missing; "
            "install eagle-chat again"
        )
    return path
