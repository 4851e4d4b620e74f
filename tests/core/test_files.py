from __future__ import annotations

import os
from pathlib import Path

import pytest

from eagle_chat.core.errors import EagleChatError
from eagle_chat.core.files import PUBLIC, write_atomic


def test_written_whole_private_and_without_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a"
    for text in ("one\n", "é 好\r\n\ud83d"):
        write_atomic(path, text)
    assert path.read_bytes() == "é 好\r\n\\ud83d".encode()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [item.name for item in path.parent.iterdir()] == ["a"]


def test_bytes_and_public_files(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a"
    write_atomic(path, b"\xff\x00", PUBLIC)
    assert path.read_bytes() == b"\xff\x00"
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    write_atomic(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a").read_text() == "new"


def test_a_failure_keeps_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EagleChatError, match="No space left"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["a"]


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(EagleChatError, match="was to be written"):
        write_atomic(tmp_path, "x")


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EagleChatError, match="something else than a file"):
        write_atomic(tmp_path / "pipe", "x")
    assert (tmp_path / "pipe").is_fifo()
