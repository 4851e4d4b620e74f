from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from eagle_chat.core.errors import EagleChatError, UserError
from eagle_chat.core.files import PUBLIC, make_folder, read_object, sole_writer, write_atomic


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


@pytest.mark.parametrize("place", ["file", "file/below", "dangling/below", "/proc/x", "/sys/x"])
@pytest.mark.parametrize("use", [make_folder, lambda path: sole_writer(path).__enter__()])
def test_places_that_cannot_be_folders(tmp_path: Path, place: str, use: Callable[[Path], object]) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "file" / "x")
    with pytest.raises(UserError, match=r"a folder to write into expected, found .* \(.+\): give another path"):
        use(tmp_path / place)


def test_a_folder_that_may_not_be_written_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)  # rights do not bind who runs the tests as root
    with pytest.raises(UserError, match="Permission denied"):
        make_folder(tmp_path / "a")


def test_a_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"null", b"\xff", b"[" * 100_000])
def test_files_that_hold_no_json_object(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(UserError, match=r"a thing expected in .*a, found .*: do this"):
        read_object(tmp_path / "a", "a thing", "do this")
    (tmp_path / "a").write_text('{"b": 1}')
    assert read_object(tmp_path / "a", "a thing", "do this") == {"b": 1}


def test_a_folder_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(EagleChatError, match="was to be written"):
        write_atomic(tmp_path, "x")


def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EagleChatError, match="something else than a file"):
        write_atomic(tmp_path / "pipe", "x")
    assert (tmp_path / "pipe").is_fifo()
