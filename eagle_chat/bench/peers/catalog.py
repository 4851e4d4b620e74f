"""Which other engines can be asked about this target, and why the others cannot."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from eagle_chat.bench.peers.places import LLAMA_CPP, VLLM, node_package, set_up_command, vllm_python
from eagle_chat.bench.peers.worker import Peer
from eagle_chat.core import registry
from eagle_chat.core.config import LoadConfig, cache_root
from eagle_chat.core.loading import find_head_folder
from eagle_chat.core.progress import Report

if TYPE_CHECKING:
    from eagle_chat.core.engine import Engine

WORKERS = Path(__file__).parent / "workers"
LOOKUP_TOKENS = 3
"""Draft tokens of prompt lookup: the default of node-llama-cpp."""
CHAIN = 3
"""Draft tokens of vLLM, which drafts chains: beyond three, little is accepted and each costs a step of the head."""
VLLM_CACHE_GIB = 1


@dataclass(frozen=True)
class Skipped:
    """A peer that does not take part, and why."""

    name: str
    reason: str


def find_peers(engine: Engine, config: LoadConfig, max_length: int, report: Report) -> list[Peer | Skipped]:
    """Every peer. `config`: what `engine` was loaded from; `max_length`: tokens of the longest prompt and answer."""
    common = {"target": engine.target.model.config.name_or_path, "dtype": engine.describe()["dtype"]}
    common |= {"max_length": max_length, "device": str(engine.target.device)}
    return [*_transformers(common), *_vllm(engine, config, common), *_llama_cpp(engine, config, common, report)]


def _transformers(common: dict[str, Any]) -> Iterator[Peer]:
    for name, lookup in (("transformers", 0), ("transformers, prompt lookup", LOOKUP_TOKENS)):
        yield _python(name, Path(sys.executable), {**common, "engine": "transformers", "lookup": lookup})


def _vllm(engine: Engine, config: LoadConfig, common: dict[str, Any]) -> Iterator[Peer | Skipped]:
    interpreter = vllm_python()
    if not interpreter.is_file():
        yield Skipped("vLLM", _not_installed(interpreter, VLLM))
        return
    settings = {**common, "engine": "vllm"}
    yield _python("vLLM", interpreter, settings)
    if engine.head is None or engine.head.spec.architecture != "eagle3":
        yield Skipped("vLLM, eagle3", "there is no eagle3 head to give it")
        return
    yield _python(f"vLLM, eagle3 chain {CHAIN}", interpreter, {
        **settings, "head": str(find_head_folder(config)), "chain": CHAIN,
    })  # fmt: skip


def _llama_cpp(engine: Engine, config: LoadConfig, common: dict[str, Any], report: Report) -> Iterator[Peer | Skipped]:
    node, package = shutil.which("node"), node_package()
    if not package.is_dir():
        yield Skipped("llama.cpp", _not_installed(package, LLAMA_CPP))
    elif node is None:
        yield Skipped("llama.cpp", "Node 20 or newer expected, found none: install it")
    elif engine.target.device.type != "cpu":
        yield Skipped("llama.cpp", "its prebuilt binary that is used here runs on CPUs only: add --device cpu")
    elif (gguf := _gguf(config, report)) is None:
        yield Skipped("llama.cpp", f"no GGUF file of {config.base} is known: give one as --base")
    else:
        settings = {**common, "package": str(package), "gguf": str(gguf), "threads": torch.get_num_threads()}
        for name, lookup in (("llama.cpp", 0), ("llama.cpp, prompt lookup", LOOKUP_TOKENS)):
            command = (node, str(WORKERS / "llama_cpp_worker.mjs"), json.dumps({**settings, "lookup": lookup}))
            yield Peer(name, gguf.stem.rpartition(".")[2] or "gguf", command, {})


def _gguf(config: LoadConfig, report: Report) -> Path | None:
    """The target as a GGUF file: what was given as one, or the file that the embedded model was made from."""
    from eagle_chat.core.embedded_sources import find_gguf

    if config.base.endswith(".gguf"):
        return Path(config.base).expanduser().absolute()
    entry = registry.entries().get(config.base)
    if entry is None or not entry.target.startswith("embedded:"):
        return None
    return find_gguf(cache_root() / "downloads", report)


def _python(name: str, interpreter: Path, settings: dict[str, Any]) -> Peer:
    # Without -P the worker's own folder would come before the libraries.
    command = (str(interpreter), "-P", str(WORKERS / "python_worker.py"), json.dumps(settings))
    threads = str(torch.get_num_threads())
    environment = {"OMP_NUM_THREADS": threads, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "PYTHONPATH": ""}
    if settings["engine"] == "vllm":
        # Threads bound to fixed cores would share them with whatever else runs there.
        environment |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": str(VLLM_CACHE_GIB)}
    return Peer(name, settings["dtype"], command, environment)


def _not_installed(place: Path, environment: str) -> str:
    return f"not installed (looked for {place}); set it up: {set_up_command(environment)}"
