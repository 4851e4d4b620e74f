"""From LLVM's intermediate code to machine code in memory; kept in the cache folder, as compiling takes a second."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any

from llvmlite import __version__ as llvmlite_version
from llvmlite import binding, ir

from eagle_chat.core import (
    kernel_attention,
    kernel_bf12,
    kernel_head,
    kernel_ir,
    kernel_layer,
    kernel_machine,
    kernel_parts,
    kernel_products,
)
from eagle_chat.core.config import cache_root
from eagle_chat.core.errors import EagleChatError
from eagle_chat.core.files import write_atomic
from eagle_chat.core.kernel_machine import Machine
from eagle_chat.core.kernel_products import FORMS

SOURCES = (
    kernel_machine,
    kernel_ir,
    kernel_bf12,
    kernel_products,
    kernel_parts,
    kernel_attention,
    kernel_layer,
    kernel_head,
)
DIGEST = 32
"""Bytes of a SHA-256 that a kept file begins with, of what follows: machine code that is damaged must not run."""


def code(machine: Machine, parallel: bool) -> str:
    """All functions in LLVM's intermediate code. `parallel`: work is shared among the threads of OpenMP."""
    made = ir.Module("kernels")
    made.triple = ""
    dtypes = list(FORMS)
    kernel_products.add_products(made, machine, dtypes, parallel)
    kernel_bf12.add_packing(made, machine)
    kernel_parts.add_parts(made, machine.lanes)
    kernel_layer.add_layers(made, machine, dtypes, parallel)
    kernel_head.add_head(made, machine, dtypes)
    return str(made)


def load(machine: Machine, symbols: dict[str, int]) -> Any:
    """An engine of LLVM that owns the code and knows its functions by name. `symbols`: addresses of OpenMP's functions;
    without any, the code is for one thread. RuntimeError where LLVM has no code generator for this processor."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    for name, address in symbols.items():
        binding.add_symbol(name, address)
    processor, features = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    target = binding.Target.from_default_triple().create_target_machine(cpu=processor, features=features, opt=3)
    path = _path(f"{processor} {features} {llvmlite_version} {machine} {bool(symbols)}")
    compiled = _read(path)
    if compiled is None:
        compiled = _compile(target, code(machine, bool(symbols)))
        with contextlib.suppress(EagleChatError):  # a cache that cannot be written costs a second at every start
            write_atomic(path, hashlib.sha256(compiled).digest() + compiled)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), target)
    engine.add_object_file(binding.ObjectFileRef.from_data(compiled))
    engine.finalize_object()
    return engine


def _compile(target: Any, text: str) -> bytes:
    module = binding.parse_assembly(text)
    module.verify()
    passes = binding.create_pass_builder(target, binding.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(module, passes)
    found: bytes = target.emit_object(module)
    return found


def _path(what: str) -> Path:
    """Where the code is kept: by processor, and by the files that it is made from."""
    digest = hashlib.sha256(what.encode())
    for module in SOURCES:
        assert module.__file__ is not None
        digest.update(Path(module.__file__).read_bytes())
    return cache_root() / "kernels" / f"{digest.hexdigest()[:24]}.o"


def _read(path: Path) -> bytes | None:
    try:
        kept = path.read_bytes()
    except OSError:
        return None
    return kept[DIGEST:] if hashlib.sha256(kept[DIGEST:]).digest() == kept[:DIGEST] else None
