"""Rows of data files: JSON arrays and JSONL, plain or gzipped. What cannot be read is told with its file and line."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from eagle_chat.core.errors import UserError

SUFFIXES = (".jsonl", ".json", ".jsonl.gz", ".json.gz")
CORPUS = "corpus.json"
"""The settings of a corpus, beside its shards and their notes."""
_HALF_CHARACTER = re.compile("[\ud800-\udfff]")


def whole_text(text: str) -> str:
    """`text` with a sign for what is missing where JSON escapes gave half of a character: no tokenizer takes that."""
    return _HALF_CHARACTER.sub("\ufffd", text)


def data_files(folder: Path) -> list[Path]:
    """The data files of a folder in order: its JSONL shards where it has any, otherwise its JSON files."""
    shards = sorted(path for path in folder.iterdir() if path.name.endswith((".jsonl", ".jsonl.gz")))
    if shards or _is_corpus(folder):
        return shards
    return sorted(path for path in folder.iterdir() if path.name.endswith((".json", ".json.gz")))


def _is_corpus(folder: Path) -> bool:
    """Whether a corpus was begun here: then the JSON files are notes, not data."""
    try:
        found = json.loads((folder / CORPUS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "question_temperature" in found


def file_rows(path: Path) -> Iterator[tuple[Any, str]]:
    """Every row of a data file, and where it stands. UserError for a file that cannot be read."""
    if path.name.removesuffix(".gz").endswith(".jsonl"):
        yield from ((parsed(line, where), where) for line, where in text_lines(path))
    else:
        yield from _json_rows("".join(_lines(path)), path)


def text_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Every line of a file that is not blank, and where it stands. UserError for a file that cannot be read."""
    numbered = enumerate(_lines(path), 1)
    yield from ((line.rstrip("\n"), f"{path}:{number}") for number, line in numbered if line.strip())


def _lines(path: Path) -> Iterator[str]:
    try:
        with _opened(path) as file:
            yield from file  # not splitlines: JSON may hold U+2028
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UserError(f"{path} cannot be read ({error}): correct or leave it out") from error


def _opened(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def parsed(text: str, where: str) -> Any:
    """The JSON value of a text. UserError naming the place where it is none."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        reason = f"{error.msg}, line {error.lineno} column {error.colno}"
        if error.lineno == 1:  # `where` names the line already
            reason = f"{error.msg}, column {error.colno}"
    except ValueError as error:  # a number of thousands of digits
        reason = str(error)
    except RecursionError:
        reason = "nested too deeply"
    raise UserError(f"{where} cannot be read as JSON ({reason}): correct or leave it out")


def _json_rows(text: str, path: Path) -> Iterator[tuple[Any, str]]:
    """Rows of a JSON array, or of one under the key `data`; files named .json that hold one object a line are common,
    and read as such."""
    try:
        rows = parsed(text, str(path))
    except UserError:
        if not text.lstrip().startswith("{"):
            raise
        lines = enumerate(text.split("\n"), 1)
        yield from ((parsed(line, f"{path}:{at}"), f"{path}:{at}") for at, line in lines if line.strip())
        return
    if isinstance(rows, dict) and not rows.keys() & {"messages", "conversations"}:
        inner = rows.get("data")
        wraps = isinstance(inner, list) and all(isinstance(row, dict) for row in inner)
        rows = inner if wraps else rows
    yield from ((row, f"{path}[{at}]") for at, row in enumerate(rows if isinstance(rows, list) else [rows]))
