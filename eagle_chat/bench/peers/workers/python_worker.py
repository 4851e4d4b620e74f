"""transformers or vLLM as a process that answers questions and times itself. Runs without this project installed.

    python -P python_worker.py CONFIG

CONFIG is a JSON object: `engine` ("transformers" or "vllm"), `target` (folder or hub id), `dtype`, `max_length`
(tokens of prompt and answer), for transformers `device` and `lookup` (draft tokens from the prompt, 0 for none), for
vLLM `head` (a folder) with `chain` (draft tokens).

Then JSON objects, one a line. Out: `{"ready": {name: version}}`. In: `{"prompt", "max_new_tokens", "stop_ids"}`. Out:
`{"token_ids", "first_tokens", "first_seconds", "seconds", "steps"}`, where the first step (which holds the prefill)
took `first_seconds` and gave `first_tokens`, and `steps` counts all that gave tokens. The end of the input is the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Advance = Callable[[int], None]
"""Told after each step how many tokens there are."""
Generate = Callable[[list[int], int, list[int], Advance], list[int]]


def load_transformers(config: dict[str, Any]) -> tuple[Generate, dict[str, str]]:
    """`generate` as anyone would call it, greedy."""
    import torch
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        config["target"], dtype=getattr(torch, config["dtype"])
    )
    model.eval().to(config["device"])
    lookup = {"prompt_lookup_num_tokens": config["lookup"]} if config["lookup"] else {}

    class Streamer:
        def __init__(self, advance: Advance) -> None:
            self._advance, self._tokens = advance, -1

        def put(self, value: Any) -> None:
            if self._tokens < 0:  # the prompt comes first
                self._tokens = 0
                return
            self._tokens += value.numel()
            self._advance(self._tokens)

        def end(self) -> None:
            """Nothing is left."""

    def generate(prompt: list[int], budget: int, stop_ids: list[int], advance: Advance) -> list[int]:
        ids = torch.tensor([prompt], device=model.device)
        options: dict[str, Any] = {"eos_token_id": stop_ids, "pad_token_id": stop_ids[0]} if stop_ids else {}
        whole = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=budget,
            streamer=Streamer(advance),
            **options,
            **lookup,
        )
        answer: list[int] = whole[0, len(prompt) :].tolist()
        return answer

    return generate, {"transformers": transformers.__version__, "torch": torch.__version__}


def load_vllm(config: dict[str, Any]) -> tuple[Generate, dict[str, str]]:
    """vLLM's engine in this process, one request at a time, stepped by hand."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    import torch
    import vllm

    speculative = None
    if config.get("head"):
        speculative = {"method": "eagle3", "model": config["head"], "num_speculative_tokens": config["chain"]}
    engine = vllm.LLM(
        model=config["target"],
        dtype=config["dtype"],
        max_model_len=config["max_length"],
        max_num_seqs=1,
        enable_prefix_caching=False,  # every question is new
        speculative_config=speculative,
    ).llm_engine
    asked = 0

    def generate(prompt: list[int], budget: int, stop_ids: list[int], advance: Advance) -> list[int]:
        nonlocal asked
        asked += 1
        sampling = vllm.SamplingParams(temperature=0.0, max_tokens=budget, stop_token_ids=stop_ids, detokenize=False)
        engine.add_request(str(asked), {"prompt_token_ids": prompt}, sampling)
        tokens: list[int] = []
        while engine.has_unfinished_requests():
            for output in engine.step():
                before, tokens = len(tokens), list(output.outputs[0].token_ids)
                if len(tokens) > before:
                    advance(len(tokens))
        return tokens

    return generate, {"vllm": vllm.__version__, "torch": torch.__version__}


def timed(generate: Generate, asked: dict[str, Any]) -> dict[str, Any]:
    """One answer with its times."""
    steps: list[tuple[int, float]] = []
    begin = time.perf_counter()

    def advance(tokens: int) -> None:
        steps.append((tokens, time.perf_counter() - begin))

    tokens = generate(asked["prompt"], asked["max_new_tokens"], asked["stop_ids"], advance)
    seconds = time.perf_counter() - begin
    return {
        "token_ids": tokens,
        "first_tokens": steps[0][0],
        "first_seconds": steps[0][1],
        "seconds": seconds,
        "steps": len(steps),
    }


def main() -> None:
    """Load, then answer until the input ends."""
    # Whatever a library prints goes to stderr: the lines of stdout are answers.
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(value: dict[str, Any]) -> None:
        lines.write(json.dumps(value) + "\n")
        lines.flush()

    config = json.loads(sys.argv[1])
    load = {"transformers": load_transformers, "vllm": load_vllm}[config["engine"]]
    generate, versions = load(config)
    say({"ready": versions})
    for line in sys.stdin:
        say(timed(generate, json.loads(line)))


if __name__ == "__main__":
    main()
