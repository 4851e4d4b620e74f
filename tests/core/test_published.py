"""By published name from a hub's cache to an answer, without a network: tiny models stand where the real ones would.

In a process of its own, because the hub's libraries read where their cache is when they are imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from eagle_chat.core.heads.checkpoint import Checkpoint
from eagle_chat.core.target import Target
from tests import templates, tiny
from tests.words import byte_level

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PROGRAM = """
import json, sys
from eagle_chat import SamplingConfig, TreeConfig, load_engine
for options in json.loads(sys.argv[1]):
    engine = load_engine(dtype="float32", **options)
    question = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "u1"}]
    sampling = SamplingConfig(max_new_tokens=12, ignore_stop_ids=True)
    answers = []
    for tree in (TreeConfig("none"), TreeConfig("dynamic", 3, 3, 8)):
        events = list(engine.stream(question, sampling=sampling, tree=tree))
        answers.append([token for event in events if event.type == "committed" for token in event.token_ids])
    print(json.dumps({"head": engine.head.spec.architecture, "same": answers[0] == answers[1], "answer": answers[0],
                      "stops": sorted(engine.chat.stop_ids), "notes": events[0].notes}))
"""


def snapshot(cache: Path, repo: str) -> Path:
    """The folder of a repository's newest commit in a hub cache."""
    folder = cache / f"models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    return folder / "snapshots" / COMMIT


def put_target(cache: Path, repo: str) -> Target:
    model = tiny.make_model(vocab_size=262, num_hidden_layers=4, bos_token_id=256, eos_token_id=[257, 258])
    model.save_pretrained(snapshot(cache, repo))
    wanted = templates.FORMATS["llama-3"]
    tokenizer = byte_level(wanted.special, wanted.bos, wanted.eos, "bos", templates.source("llama-3"))
    tokenizer.save_pretrained(cache / f"models--{repo.replace('/', '--')}" / "snapshots" / COMMIT)
    return Target(model, "tiny")


def put_head(cache: Path, repo: str, files: Checkpoint, binary: bool) -> None:
    folder = snapshot(cache, repo)
    (folder / "config.json").write_text(json.dumps(files.config))
    if binary:
        torch.save(files.tensors, folder / "pytorch_model.bin")
    else:
        save_file(files.tensors, folder / "model.safetensors")


@pytest.mark.timeout(600)  # it starts a process that imports torch: seconds, and minutes on a machine that is busy
def test_published_names_lead_to_an_answer(tmp_path: Path) -> None:
    cache = tmp_path / "hub"
    target = put_target(cache, "meta-llama/Meta-Llama-3-8B-Instruct")
    put_target(cache, "meta-llama/Llama-3.1-8B-Instruct")
    older = tiny.head_files("eagle", target, num_hidden_layers=1, model_type="llama", rope_theta=500000.0)
    put_head(cache, "yuhuili/EAGLE-LLaMA3-Instruct-8B", older, binary=True)
    newer = tiny.head_files("eagle3", target, eagle_aux_hidden_state_layer_ids=[1, 2, 3], vocab_size=262)
    ids = torch.arange(tiny.VOCAB) * 2
    newer.tensors["d2t"] = ids - torch.arange(tiny.VOCAB)
    newer.tensors["t2d"] = torch.zeros(262, dtype=torch.bool).index_fill(0, ids, True)
    put_head(cache, "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", newer, binary=False)
    asked: list[dict[str, Any]] = [
        {"base": "llama-3-instruct", "draft": "yuhuili/EAGLE-LLaMA3-Instruct-8B"},
        {"base": "llama-3.1-8b"},
        {"base": "meta-llama/Llama-3.1-8B-Instruct", "revision": COMMIT, "draft_revision": COMMIT},
    ]
    environment = {
        **os.environ, "HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(asked)],
        capture_output=True, text=True, check=False, timeout=550, env=environment, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [run["head"] for run in found] == ["eagle", "eagle3", "eagle3"]
    assert all(run["same"] for run in found)
    assert found[1] == found[2]
    assert found[0]["stops"] == [257, 258]  # <|end_of_text|> and <|eot_id|>
    assert found[0]["notes"] == []
