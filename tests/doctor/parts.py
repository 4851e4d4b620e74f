"""Pairs on the disk to be broken, and the findings about them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from eagle_chat.bench.prompts import Question
from eagle_chat.core.config import LoadConfig, TreeConfig
from eagle_chat.core.loading import load_engine
from eagle_chat.doctor.examine import Run, examine_files, examine_run
from eagle_chat.doctor.findings import Finding, exit_code
from tests import tiny
from tests.core.test_loading import save_head, save_tokenizer

QUESTIONS = [Question(1, "letters", ("hello",)), Question(2, "letters", ("abc",))]


class Pair:
    """A tiny target and head in two folders."""

    def __init__(self, folder: Path, kind: str = "eagle3", draft_vocab: int = tiny.VOCAB, **config: Any) -> None:
        self.target, self.head = folder / "target", folder / "head"
        tiny.make_model("llama", eos_token_id=91).save_pretrained(self.target)
        save_tokenizer(self.target)
        files = tiny.head_files(kind, tiny.make_target("llama"), draft_vocab=draft_vocab, **config)
        save_head(self.head, files)

    def files(self, **options: Any) -> list[Finding]:
        """What is found without loading."""
        return list(examine_files(self.config(**options)))

    def ran(self, **options: Any) -> list[Finding]:
        """What is found by a short run."""
        run = Run(QUESTIONS, 12, TreeConfig(), lambda config: load_engine(config))
        return list(examine_run(self.config(**options), run, lambda *_: None))

    def config(self, **options: Any) -> LoadConfig:
        given = {"base": str(self.target), "draft": str(self.head), "dtype": "float32", "device": "cpu", **options}
        return LoadConfig(**given)

    def change_config(self, folder: Path, **changes: Any) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    def change_tensors(self, folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
        path = folder / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, {"format": "pt"})


def grave(findings: list[Finding]) -> list[Finding]:
    """Warnings and errors, without what depends on the machine or on the weights being random."""
    skipped = {("machine", "load"), ("machine", "threads"), ("machine", "versions"), ("machine", "cuda")}
    skipped |= {("run", "tokenizer"), ("run", "tau"), ("run", "speed")}
    return [one for one in findings if one.severity in ("warning", "error") and (one.group, one.check) not in skipped]


def only(findings: list[Finding], check: str, severity: str = "error", code: int | None = None) -> Finding:
    """The one finding of that severity: it must be of `check`, with a cause, a remedy, and the exit code."""
    (finding,) = [one for one in grave(findings) if one.severity == severity]
    assert finding.check == check, finding
    assert finding.cause, finding
    assert finding.remedy, finding
    if code is not None:
        assert exit_code(findings) == code
    return finding
