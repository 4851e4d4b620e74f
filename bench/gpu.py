"""What a cycle costs beyond a plain step on a CUDA device, both captured as graphs, with a random Llama of 8B.

python -m bench.gpu [--tau 4.0] [--depth 8 --top-k 10 --nodes 60] [--context 512] [--cycles 200]

Weights are random, so nothing would be accepted: an oracle accepts as many drafted tokens as make the asked τ, along
the first children of the real tree. All else is real: head, tree, the forward over its nodes, walk, commit.
That is the floor: one graph for a whole draft, one for the rest, and a single wait. Beside it stands the program's own
loop over transformers' Llama with the same sizes (`engine`), whose forwards are graphs and whose tree is the host's.
`--tiny --device cpu` goes through the same code on a small model, uncaptured, to see that it runs; its times say
nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from bench.static_cycle import Cycle, PlainStep
from bench.static_steps import LLAMA_8B, Shape, StaticHead, StaticLlama
from eagle_chat.core.chat import Chat
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.detokenizer import Detokenizer
from eagle_chat.core.engine import Engine
from eagle_chat.core.events import Committed
from eagle_chat.core.heads.eagle3 import Eagle3Head
from eagle_chat.core.heads.spec import HeadSpec
from eagle_chat.core.target import Target

TINY = Shape(64, 128, 8, 4, 2, 16, 512)
GOAL = 0.25
ROUNDS = 5
"""Answers of each kind that the program's loop is timed in, after one to warm up."""


def oracle_plan(tau: float, cycles: int, depth: int) -> list[int]:
    """Drafted tokens to accept in each cycle, so that cycles give `tau` tokens on average, the bonus included."""
    extra = min(max(tau - 1.0, 0.0), float(depth))
    return [int((cycle + 1) * extra) - int(cycle * extra) for cycle in range(cycles)]


def captured(run: Callable[[], None], device: str) -> Callable[[], None]:
    """`run` as a CUDA graph; on a CPU `run` itself."""
    if device == "cpu":
        return run
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # libraries choose and allocate on their first calls, which must not be captured
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


class Clock:
    """Milliseconds of calls: by events on CUDA, which do not wait between, by the clock elsewhere."""

    def __init__(self, device: str) -> None:
        self._cuda = device != "cpu"
        self._spans: dict[str, list[Any]] = {}

    def run(self, name: str, call: Callable[[], None]) -> None:
        """Call, and note how long it took."""
        if not self._cuda:
            start = time.perf_counter()
            call()
            self._spans.setdefault(name, []).append(1e3 * (time.perf_counter() - start))
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        self._spans.setdefault(name, []).append((begin, end))

    def milliseconds(self) -> dict[str, list[float]]:
        """What was noted, by name."""
        if not self._cuda:
            return self._spans
        torch.cuda.synchronize()
        return {name: [begin.elapsed_time(end) for begin, end in spans] for name, spans in self._spans.items()}


def report(times: dict[str, list[float]], wall: dict[str, float], tokens: int, cycles: int) -> dict[str, Any]:
    """The figures: medians in ms, c by stage against the plain step, τ as it came out, speed-up.

    `wall`: ms a cycle and a plain step took on the host's clock, waiting for the tokens included.
    """
    middle = {name: statistics.median(values) for name, values in times.items()}
    plain = middle["plain"]
    device_c = (middle["draft"] + middle["verify"]) / plain - 1.0
    c = wall["cycle"] / wall["plain"] - 1.0
    tau = tokens / cycles
    return {
        "device_ms": middle,
        "c_device": {"total": device_c, "draft": middle["draft"] / plain, "verify": middle["verify"] / plain - 1.0},
        "wall_ms": wall,
        "c": c,
        "tau": tau,
        "speedup": tau / (1.0 + c),
        "goal": {"c": GOAL, "met": c <= GOAL},
    }


@torch.inference_mode()
def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Build, capture, run in interleaved rounds from the same context each time."""
    device, shape = options.device, TINY if options.tiny else LLAMA_8B
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    nodes, depth, top_k = options.nodes, options.depth, options.top_k
    room = options.context + max(nodes, depth * top_k) + depth + 2
    capacity = -(-room // 256) * 256
    target = StaticLlama.random(shape, capacity, device, dtype)
    head = StaticHead(target, min(32000, shape.vocab), capacity)
    taps = (2, shape.layers // 2, shape.layers - 3)
    for store in (target.room, head.room):
        store.keys.normal_()
        store.values.normal_()
    cycle, plain = Cycle(target, head, taps, depth, top_k, nodes, oracle=True), PlainStep(target, taps)
    assert cycle.plan is not None
    steps = {"plain": plain.run, "draft": cycle.draft, "verify": cycle.verify}

    def start_over() -> None:
        target.room.length.fill_(options.context)
        head.room.length.fill_(options.context - 1)
        cycle.waiting.fill_(1)

    start_over()
    calls = {name: captured(run, device) for name, run in steps.items()}
    allocated = _allocations(device)
    clock, tokens = Clock(device), 0
    walls: dict[str, list[float]] = {"cycle": [], "plain": []}
    for accepted in oracle_plan(options.tau, options.cycles, depth):
        start_over()
        cycle.plan.fill_(accepted)
        start = time.perf_counter()
        clock.run("draft", calls["draft"])
        clock.run("verify", calls["verify"])
        tokens += cycle.out.tolist()[0]  # the one wait of a cycle
        walls["cycle"].append(1e3 * (time.perf_counter() - start))
        start_over()
        start = time.perf_counter()
        clock.run("plain", calls["plain"])
        plain.root.tolist()
        walls["plain"].append(1e3 * (time.perf_counter() - start))
    found = report(
        clock.milliseconds(),
        {name: statistics.median(values) for name, values in walls.items()},
        tokens,
        options.cycles,
    )
    name = torch.cuda.get_device_name() if device != "cpu" else "cpu"
    return {
        "device": name,
        "torch": torch.__version__,
        "dtype": str(dtype),
        "tree": [nodes, depth, top_k],
        "context": options.context,
        **found,
        "allocations_a_cycle": (_allocations(device) - allocated) / options.cycles,
        "engine": None if options.floor_only else measure_engine(options, shape, dtype),
    }


class _NoText:
    """Stands in for a tokenizer: the loop asks for text."""

    stop_ids: frozenset[int] = frozenset()

    def decode(self, token_ids: Sequence[int]) -> str:
        return "." * len(token_ids)

    def detokenizer(self, prompt: Sequence[int]) -> Detokenizer:
        return Detokenizer(self)


@torch.inference_mode(False)
def engine_of(shape: Shape, capacity: int, device: str, dtype: torch.dtype) -> Engine:
    """The program's own engine over a random Llama and a random EAGLE-3 head of these sizes."""
    sizes: dict[str, Any] = {"hidden_size": shape.hidden, "intermediate_size": shape.wide, "head_dim": shape.head_dim}
    config = LlamaConfig(
        vocab_size=shape.vocab, num_hidden_layers=shape.layers, num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads, max_position_embeddings=capacity, rms_norm_eps=shape.eps, **sizes,
    )  # fmt: skip
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    target = Target(model, "random", fast=False, fixed_shapes=True)
    spec = HeadSpec(
        "eagle3", embedding_size=shape.hidden, feature_size=3 * shape.hidden, num_heads=shape.heads,
        num_kv_heads=shape.kv_heads, num_layers=1, vocab_size=shape.vocab, draft_vocab_size=min(32000, shape.vocab),
        rms_norm_eps=shape.eps, rope={"rope_type": "default", "rope_theta": shape.theta}, max_positions=capacity,
        taps=(2, shape.layers // 2, shape.layers - 3), **sizes,
    )  # fmt: skip
    head = Eagle3Head(spec, target.embed, target.lm_head, torch.arange(spec.draft_vocab_size))
    head = head.to(device=device, dtype=dtype).eval()
    head.rotary = type(head.rotary)(spec.llama_config()).to(device)  # in float32, as `build_head` leaves it
    return Engine(target, cast(Chat, _NoText()), head, "random")


def measure_engine(options: argparse.Namespace, shape: Shape, dtype: torch.dtype) -> dict[str, Any]:
    """Wall milliseconds of a cycle and of a plain step in the program's loop, in interleaved answers.

    Of random weights hardly a token is accepted, which makes a cycle no cheaper or dearer: c is what this gives.
    """
    engine = engine_of(shape, options.context + 8 * options.nodes + options.cycles + 256, options.device, dtype)
    trees = {
        "cycle": TreeConfig("dynamic", depth=options.depth, top_k=options.top_k, total_tokens=options.nodes),
        "plain": TreeConfig("none"),
    }
    states = {name: engine.new_state() for name in trees}
    prompt = torch.randint(shape.vocab, (options.context,), generator=torch.Generator().manual_seed(0)).tolist()
    sampling = SamplingConfig(max_new_tokens=max(options.cycles // ROUNDS, 4))
    times: dict[str, list[float]] = {name: [] for name in trees}
    for _ in range(ROUNDS + 1):
        for name, tree in trees.items():
            events = engine.stream(prompt, sampling, tree, states[name])
            start, found = time.perf_counter(), []
            for event in events:
                now = time.perf_counter()
                if isinstance(event, Committed) and event.cycle > 1:  # the first waits for the prompt's last kernels
                    found.append(1e3 * (now - start))
                start = now
            times[name].append(statistics.median(found))
    medians = {name: statistics.median(rounds[1:]) for name, rounds in times.items()}  # the first round captures
    assert engine.head is not None
    refused = {"target": engine.target.steps.refused, "head": engine.head.steps.refused}
    return {"wall_ms": medians, "c": medians["cycle"] / medians["plain"] - 1.0, "refused": refused}


def _allocations(device: str) -> int:
    """Blocks that torch's allocator for the device has given out so far."""
    return 0 if device == "cpu" else int(torch.cuda.memory_stats()["allocation.all.allocated"])


def main() -> None:
    """Measure and print a JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tau", type=float, default=4.0)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--top-k", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=60)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--floor-only", action="store_true", help="leave the program's own loop out")
    options = parser.parse_args()
    if options.device != "cpu" and not torch.cuda.is_available():
        raise SystemExit("a CUDA device expected, found none: try --tiny --device cpu, or run this where there is one")
    print(json.dumps(measure(options), indent=1))


if __name__ == "__main__":
    main()
