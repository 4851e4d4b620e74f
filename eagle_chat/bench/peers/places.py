"""Where the environments of the other engines are."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from eagle_chat.core.config import cache_root

VLLM, LLAMA_CPP = "vllm", "llama-cpp"
ENVIRONMENTS = (VLLM, LLAMA_CPP)
NODE_PACKAGE = "node-llama-cpp"


def peers_folder() -> Path:
    """Folder of the environments: `$EAGLE_CHAT_PEERS`, else in the cache."""
    override = os.environ.get("EAGLE_CHAT_PEERS")
    return Path(override).expanduser().absolute() if override else cache_root() / "peers"


def python_of(environment: Path) -> Path:
    """The interpreter of a virtual environment."""
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def vllm_python() -> Path:
    """The interpreter that has vLLM, if it was set up."""
    return python_of(peers_folder() / VLLM)


def node_package() -> Path:
    """The package that has llama.cpp, if it was set up."""
    return peers_folder() / LLAMA_CPP / "node_modules" / NODE_PACKAGE


def set_up_command(environment: str) -> str:
    """What a person types to get it."""
    return f"{Path(sys.executable).name} -m eagle_chat.bench.peers.setup {environment}"
