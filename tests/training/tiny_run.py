"""A tiny target that training can be run on: a random Llama over letters, saved as `load_engine` reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eagle_chat.training.config import TrainConfig
from tests.tiny import make_model
from tests.training.families import letters_chat

QUESTIONS = ("Hello?", "Who are you?", "Say a, b", "What is 2+2", "Why not")
ANSWERS = ("Hi there, hi there, hi there.", "I am a tiny one.", "a, b, a, b, a, b", "It is 4, or 5.", "Because.")


def save_target(folder: Path, brief: bool = False) -> Path:
    """Weights, config and tokenizer of a random target with 97 letters, ending its turns with token 2.

    A `brief` one ends them soon.
    """
    model = make_model(eos_token_id=2)
    if brief:
        model.lm_head.weight.data[2] *= 3.0
    model.generation_config.eos_token_id = 2
    model.save_pretrained(folder)
    letters_chat().tokenizer.save_pretrained(folder)
    return folder


def write_data(path: Path, repeat: int = 1) -> Path:
    """Five conversations, one of them of two turns, as messages."""
    rows = []
    for number in range(repeat):
        tail = "" if number == 0 else f" {number}"
        for question, answer in zip(QUESTIONS, ANSWERS, strict=True):
            messages = [{"role": "user", "content": question + tail}, {"role": "assistant", "content": answer}]
            if question == "Why not":
                messages += [{"role": "user", "content": "Again"}, {"role": "assistant", "content": "Because, again."}]
            rows.append({"messages": messages})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def config(folder: Path, **changes: Any) -> TrainConfig:
    """A run of a few fast steps on the CPU."""
    fields: dict[str, Any] = {
        "data": (str(folder / "data.jsonl"),),
        "out": str(folder / "run"),
        "base": str(folder / "target"),
        "draft_vocab": 50,
        "validation": 0.0,
        "steps": 6,
        "batch_tokens": 150,
        "learning_rate": 1e-2,
        "unroll": (2,),
        "device": "cpu",
        "save_every": 100,
        "evaluate_every": 1000,
    }
    return TrainConfig(**{**fields, **changes})
