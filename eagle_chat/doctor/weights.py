"""Files of weights: whole, cut short, or something else under their name."""

from __future__ import annotations

import json
from pathlib import Path

LFS_START = b"version https://git-lfs"
LENGTH_BYTES = 8
"""A safetensors file begins with the length of its JSON header, which says where each tensor ends."""
LONGEST_HEADER = 100_000_000
INDEX = "model.safetensors.index.json"


def defect(path: Path) -> str | None:
    """Why a file of weights cannot be whole, in words; None where nothing is wrong with it from outside."""
    size = path.stat().st_size
    if size == 0:
        return f"{path.name} is empty: its download never began"
    with path.open("rb") as file:
        start = file.read(len(LFS_START))
        if start == LFS_START:
            return f"{path.name} is a Git LFS pointer of {size} bytes, not the weights"
        if start.lstrip().startswith(b"<"):
            return f"{path.name} is a web page, not weights: the download was answered by an error or a login page"
        if path.suffix != ".safetensors":
            return None
        file.seek(0)
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if size < LENGTH_BYTES or length > LONGEST_HEADER:
            return f"{path.name} does not begin like a safetensors file: it is damaged or of another kind"
        if size < LENGTH_BYTES + length:
            return f"the download of {path.name} ended early: {size:,} bytes are there, its header alone is longer"
        try:
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return f"the header of {path.name} cannot be read: the file is damaged"
    whole = LENGTH_BYTES + length + max(ends, default=0)
    if size < whole:
        return f"the download of {path.name} ended early: {size:,} of {whole:,} bytes are there"
    return f"{path.name} has {size - whole:,} bytes too many: it is damaged" if size > whole else None


def missing_shards(folder: Path) -> list[str]:
    """Files that the index of a folder names and that are not there."""
    index = folder / INDEX
    if not index.is_file():
        return []
    try:
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError):
        return []  # transformers will say what is wrong with it
    return sorted(name for name in named if not (folder / name).is_file())


def weight_files(folder: Path) -> list[Path]:
    """The files that hold weights, safetensors first: `.bin` files beside them are not read."""
    safe = sorted(folder.glob("*.safetensors"))
    return safe or sorted([*folder.glob("pytorch_model*.bin"), *folder.glob("*.gguf")])
