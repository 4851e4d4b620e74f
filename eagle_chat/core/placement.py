"""Where the parts of a target run, when accelerate spreads it over devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from eagle_chat.core.errors import UserError

DISK = "disk"
SHOWN = 3
"""Parts named in an error; the others are counted."""


def run_device(module: nn.Module) -> torch.device:
    """The device on which a module computes.

    Usually that of its weights. Where accelerate fetches them for each forward, they rest elsewhere (on "meta") and
    its hook knows.
    """
    for part in module.modules():
        hook: Any = getattr(part, "_hf_hook", None)
        for one in getattr(hook, "hooks", [hook]):
            device = getattr(one, "execution_device", None)
            if device is not None:
                return torch.device(device)
    return next(module.parameters()).device


def last_layer_device(model: Any) -> torch.device:
    """The device of the target's last layer: there features end up, and there the head belongs."""
    layers = getattr(model.get_decoder(), "layers", None)
    last = layers[-1] if layers is not None and len(layers) > 0 else model.get_output_embeddings()
    return run_device(last)


def placed(model: Any) -> dict[str, str]:
    """Part -> device, as accelerate spread a model; empty where it did not."""
    return {part: str(device) for part, device in (getattr(model, "hf_device_map", None) or {}).items()}


def check_placement(placement: dict[str, str]) -> None:
    """UserError where a part would be read from the disk again in every forward."""
    on_disk = [part for part, device in placement.items() if device == DISK]
    if on_disk:
        raise UserError(
            f"a target that fits into the memory of this machine expected, found {_named(on_disk)} left on the disk by "
            "--device-map, to be read again for every token: give --load-in-4bit, a smaller target or a larger machine"
        )


def placement_notes(placement: dict[str, str]) -> list[str]:
    """What a person should know of a spread target: parts in main memory are copied to the accelerator each time."""
    devices = set(placement.values())
    resting = [part for part, device in placement.items() if device == "cpu"]
    if not resting or devices == {"cpu"}:
        return []
    note = "are copied from main memory to the accelerator in every forward, which is slow: --load-in-4bit may help"
    return [f"parts of the target ({_named(resting)}) {note}"]


def _named(parts: Iterable[str]) -> str:
    names = list(parts)
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more parts" if more > 0 else "")
