"""One training run from its config: accelerate, materials, folder, loop."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle_chat.core.errors import UserError
from eagle_chat.core.files import make_folder, sole_writer
from eagle_chat.training.checkpoints import RunFolder
from eagle_chat.training.config import TrainConfig
from eagle_chat.training.export import target_facts
from eagle_chat.training.prepare import Materials, gather
from eagle_chat.training.store import data_hash
from eagle_chat.training.trainer import Ending, Trainer
from eagle_chat.training.view import View, choose_view

Say = Callable[[str], None]
Report = Callable[[str, float], None]


def fit(config: TrainConfig, say: Say, report: Report, view: View | None = None) -> Ending:
    """Train, going on from the newest checkpoint in `config.out` where there is one.

    `say` gets sentences for people, `report` the progress of features being computed. UserError for settings that
    cannot be met or differ from those the run began with; EagleChatError where the loss is no number any more.
    """
    accelerator = make_accelerator(config)
    main: bool = accelerator.is_main_process
    if not main:
        say, report = _nothing, _nothing
    folder = RunFolder(Path(config.out).expanduser())
    if config.features == "disk" and config.features_folder is not None:
        make_folder(Path(config.features_folder).expanduser())  # a wrong path should not cost a model's loading
    with sole_writer(folder.path) if main else contextlib.nullcontext():
        return _fit(config, folder, accelerator, say, report, view or choose_view(main))


def _fit(config: TrainConfig, folder: RunFolder, accelerator: Any, say: Say, report: Report, view: View) -> Ending:
    main: bool = accelerator.is_main_process
    saved = folder.newest()
    known: Callable[[], Tensor | None] | None = None
    if saved is not None:
        ids = saved["draft_ids"]
        known = lambda: ids  # noqa: E731  a value that may be None, told apart from "not known"
    with accelerator.main_process_first():  # features on disk are computed once, and read by the others
        materials = gather(config, str(accelerator.device), known, say, report)
    if main:
        folder.open(config, facts(config, materials))
    trainer = Trainer(config, materials, folder, accelerator, view)
    if trainer.resume():
        say(f"going on from step {trainer.position.step} of {trainer.total} in {folder.path}")
    if config.tracker != "none":
        accelerator.init_trackers("eagle-chat", config=_flat(config))
    ending = trainer.run()
    if config.tracker != "none":
        accelerator.end_training()
    return ending


def facts(config: TrainConfig, materials: Materials) -> dict[str, Any]:
    """What a run is made from, for its folder and its card."""
    train, held_out = materials.dataset.train, materials.dataset.validation
    return {
        "target": target_facts(materials.target, config.revision),
        "data": data_hash(train),
        "validation_data": data_hash(held_out),
        "samples": len(train),
        "validation_samples": len(held_out),
        "answer_tokens": sum(int(sample.mask.sum()) for sample in train),
    }


def make_accelerator(config: TrainConfig) -> Any:
    """accelerate's view of this machine. UserError for a tracker that is not installed, a device it cannot use."""
    from accelerate import Accelerator

    logging.getLogger("accelerate").setLevel(logging.ERROR)
    if config.tracker != "none" and importlib.util.find_spec(config.tracker) is None:
        raise UserError(
            f"the package {config.tracker} expected for --tracker, found none: pip install {config.tracker}"
        )
    on_cpu = config.device == "cpu"
    if config.device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"a CUDA device expected for --device {config.device}, found none: use --device auto")
    if ":" in config.device:
        raise UserError(
            f"cpu, cuda or auto expected for --device, found {config.device}: choose a GPU by CUDA_VISIBLE_DEVICES, or "
            "several processes by `accelerate launch -m eagle_chat train fit ...`"
        )
    return Accelerator(
        cpu=on_cpu,
        mixed_precision=config.precision,
        log_with=None if config.tracker == "none" else config.tracker,
        project_dir=config.out,
    )


def _flat(config: TrainConfig) -> dict[str, Any]:
    """Settings in the plain types that trackers take."""
    plain = (int, float, str, bool)
    return {name: value if isinstance(value, plain) else str(value) for name, value in asdict(config).items()}


def _nothing(*_: Any) -> None:
    """Further processes say nothing."""
