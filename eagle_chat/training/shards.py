"""A folder of numbered JSONL shards, each written whole or not at all, with a note of how it came about."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from eagle_chat.core.errors import UserError
from eagle_chat.core.files import PUBLIC, make_folder, read_object, write_atomic
from eagle_chat.training.rows import CORPUS, file_rows


class Shards:
    """Shard i is `part-iiiii.jsonl` with its rows and `part-iiiii.json` with its note. The rows are renamed into place
    last, so a shard counts exactly if its rows are there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, settings: dict[str, Any]) -> None:
        """Make the folder, or check that what lies there was made with the same settings (UserError if not)."""
        make_folder(self.folder)
        for leftover in self.folder.glob(".*.tmp"):
            leftover.unlink()
        path = self.folder / CORPUS
        if not path.is_file():
            if self.count():
                raise UserError(f"an empty folder or an unfinished corpus expected, found other files in {self.folder}")
            write_atomic(path, (json.dumps(settings, indent=1) + "\n"), PUBLIC)
            return
        found = read_object(path, "the settings of a corpus", "give another --out")
        settings = json.loads(json.dumps(settings))
        changed = sorted(name for name in settings.keys() | found.keys() if settings.get(name) != found.get(name))
        if changed:
            listed = ", ".join(f"{name} {found.get(name)!r} (now {settings.get(name)!r})" for name in changed)
            raise UserError(f"{self.folder} was begun with {listed}: use the same, or another --out")

    def count(self) -> int:
        """Shards written so far, without a gap."""
        number = 0
        while self._rows(number).is_file():
            number += 1
        return number

    def write(self, number: int, rows: Iterable[dict[str, Any]], note: dict[str, Any]) -> None:
        """Write shard `number`, rows last."""
        write_atomic(self._note(number), (json.dumps(note) + "\n"), PUBLIC)
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_atomic(self._rows(number), text.encode("utf-8", "replace"), PUBLIC)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every row written so far."""
        for number in range(self.count()):
            yield from self.rows_of(number)

    def rows_of(self, number: int) -> Iterator[dict[str, Any]]:
        """Every row of shard `number`. UserError where something else has written there."""
        yield from (row for row, _ in file_rows(self._rows(number)))

    def drop_last(self) -> None:
        """Make the last shard one that is still to be written."""
        self._rows(self.count() - 1).unlink()

    def notes(self) -> list[dict[str, Any]]:
        """The note of every shard."""
        return [
            read_object(self._note(number), "the note of a shard", "give another --out")
            for number in range(self.count())
        ]

    def _rows(self, number: int) -> Path:
        return self.folder / f"part-{number:05d}.jsonl"

    def _note(self, number: int) -> Path:
        return self.folder / f"part-{number:05d}.json"
