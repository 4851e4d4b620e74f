"""Our own kernels: right for every shape of block, processor and combination of arguments."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from eagle_chat.core import kernel_bf12, kernel_code, kernels
from eagle_chat.core.kernel_machine import Machine
from eagle_chat.core.kernels import Kernels, describe

MACHINES = {
    "AVX-512": ("x86_64", {"avx512f": True, "avx2": True, "fma": True}, Machine(16, 32)),
    "AVX2": ("x86_64", {"avx2": True, "fma": True}, Machine(8, 16)),
    "NEON": ("aarch64", {"neon": True}, Machine(4, 32)),
    "SSE": ("x86_64", {"sse2": True}, None),
}


SHAPES = [machine for _, _, machine in MACHINES.values() if machine is not None]
"""LLVM splits vectors that are too long for this processor and gives short ones a part of a register, so each shape of
code can be run on any."""


@pytest.fixture(scope="module", params=SHAPES, ids=lambda machine: f"{machine.lanes} lanes")
def compiled(request: pytest.FixtureRequest) -> Kernels:
    if kernels.kernels() is None:
        pytest.skip("no kernels for this processor")
    return Kernels(request.param)


@pytest.mark.parametrize("name", MACHINES)
def test_what_a_processor_gets(name: str) -> None:
    architecture, features, expected = MACHINES[name]
    assert describe(architecture, features) == expected
    if expected is not None:  # sums, weights and one input fit in the registers
        assert (expected.rows + 1) * expected.vectors + 1 <= expected.registers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 8, 12, 13, 24, 61])
def test_the_product(compiled: Kernels, rows: int, dtype: torch.dtype) -> None:
    for outputs, depth in ((compiled.machine.panel, 1), (96, 7), (192, 40)):
        weight, x = torch.randn(outputs, depth).to(dtype), torch.randn(rows, depth)
        bias, add = torch.randn(outputs), torch.randn(rows, outputs)
        panels = compiled.pack(weight, whole=True)
        assert panels is not None
        assert torch.equal(kernels.unpack(panels, compiled.machine), weight)
        plain = x.double() @ weight.double().t()
        for given_bias in (None, bias):
            for given_add in (None, add):
                expected = plain + sum(given.double() for given in (given_bias, given_add) if given is not None)
                found = compiled.product(x, panels, given_bias, given_add)
                torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 6, 7, 24])
def test_the_product_of_rounded_weights(compiled: Kernels, rows: int) -> None:
    for outputs, depth in ((compiled.machine.panel, 1), (96, 7), (192, 40)):
        weight, x = torch.randn(outputs, depth), torch.randn(rows, depth)
        weight[3] *= 1000.0  # an output has a scale of its own
        weight[5] = 0.0
        bias, add = torch.randn(outputs), torch.randn(rows, outputs)
        panels = compiled.pack_int8(weight)
        assert panels is not None
        assert panels.numel() == outputs * (depth + 4)
        rounded = kernels.unpack(panels, compiled.machine)
        assert bool(((rounded - weight).abs() <= weight.abs().amax(dim=1, keepdim=True) / 253).all())
        expected = x.double() @ rounded.double().t() + bias + add
        torch.testing.assert_close(compiled.product(x, panels, bias, add).double(), expected, rtol=1e-5, atol=1e-3)
    assert compiled.pack_int8(torch.randn(compiled.machine.panel + 1, 4)) is None


def awkward(outputs: int, depth: int) -> torch.Tensor:
    """bfloat16 weights with all that does not fit in 12 bits: zeros of both signs, tiny and large ones."""
    weight = torch.randn(outputs, depth) * 0.1
    for at, value in enumerate((0.0, -0.0, 7.5, -1e-9, 1e-38, 2.0**-140)):
        weight[at + 1, (5 * at) % depth] = value
    weight[0] = 0.0
    return weight.bfloat16()


@pytest.mark.parametrize("rows", [1, 2, 6, 7, 13, 24, 61])
def test_the_product_of_weights_in_12_bits(compiled: Kernels, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_bf12, "MOST_EXCEPTIONS", 9.0)  # a matrix as small as these is full of them
    for outputs, depth in ((compiled.machine.panel, 4), (96, 16), (192, 40)):
        weight, x = awkward(outputs, depth), torch.randn(rows, depth)
        bias, add = torch.randn(outputs), torch.randn(rows, outputs)
        packed = compiled.pack(weight)
        assert packed is not None
        assert packed.dtype is torch.uint8
        found = kernels.unpack(packed, compiled.machine)
        assert torch.equal(found.view(torch.int16), weight.view(torch.int16)), "to the last bit"
        expected = x.double() @ weight.double().t() + bias + add
        torch.testing.assert_close(compiled.product(x, packed, bias, add).double(), expected, rtol=1e-5, atol=1e-5)


def test_every_weight_of_bfloat16_comes_back(compiled: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_bf12, "MOST_EXCEPTIONS", 99.0)
    weight = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16).view(256, 256)
    packed = compiled.pack(weight[torch.randperm(256)])
    assert packed is not None
    assert packed.dtype is torch.uint8
    found = kernels.unpack(packed, compiled.machine).view(torch.int16)
    assert found.flatten().sort().values.tolist() == list(range(-(2**15), 2**15))


def test_weights_that_do_not_fit_in_12_bits_are_left_as_they_are(compiled: Kernels) -> None:
    usual = torch.randn(192, 576) * 0.02
    packed = compiled.pack(usual.bfloat16())
    assert packed is not None
    assert packed.numel() < 0.8 * 2 * usual.numel()
    wild = (torch.randn(192, 576) * 12.0).exp().bfloat16()
    for weight in (wild, usual.bfloat16()[:, :573]):
        whole = compiled.pack(weight)
        assert whole is not None
        assert whole.dtype is torch.bfloat16
        assert torch.equal(kernels.unpack(whole, compiled.machine), weight)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_is_the_same_to_the_last_bit_whatever_is_beside_it(compiled: Kernels, threads: int, whole: bool) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = torch.randn(24, 576)
        panels = compiled.pack((torch.randn(192, 576) * 0.1).bfloat16(), whole)
        assert panels is not None
        assert (panels.dtype is torch.bfloat16) == whole
        together = compiled.product(x, panels)
        for rows in (1, 3, 8, 17):
            assert torch.equal(compiled.product(x[:rows], panels), together[:rows])
        assert torch.equal(compiled.product(x[5:6], panels), together[5:6])
    finally:
        torch.set_num_threads(before)


def test_rows_that_are_not_contiguous(compiled: Kernels) -> None:
    weight, x = torch.randn(64, 32), torch.randn(4, 64)[:, ::2]
    panels = compiled.pack(weight)
    assert panels is not None
    torch.testing.assert_close(compiled.product(x, panels), x @ weight.t())


def test_what_does_not_fit_is_left_to_others(compiled: Kernels) -> None:
    assert compiled.pack(torch.randn(compiled.machine.panel + 1, 8)) is None
    assert compiled.pack(torch.randn(64, 8).half()) is None


@pytest.mark.parametrize("machine", SHAPES)
@pytest.mark.parametrize("parallel", [False, True])
def test_the_code_is_valid_for_every_machine(machine: Machine, parallel: bool) -> None:
    from llvmlite import binding

    binding.initialize_native_target()
    module = binding.parse_assembly(kernel_code.code(machine, parallel))
    module.verify()
    assert {"product_f32", "product_bf16"} <= {function.name for function in module.functions}


def test_the_norm(compiled: Kernels) -> None:
    x, weight = torch.randn(5, 3, 96) * 4.0, torch.rand(96) + 0.5
    expected = torch.nn.functional.rms_norm(x, (96,), weight, eps=1e-2)
    torch.testing.assert_close(compiled.norm(x, weight, 1e-2), expected)
    strided = torch.randn(4, 6, 32)[:, :2]
    expected = torch.nn.functional.rms_norm(strided, (32,), weight[:32], eps=1e-5)
    torch.testing.assert_close(compiled.norm(strided, weight[:32], 1e-5), expected)
    assert torch.isfinite(compiled.norm(torch.zeros(1, 32), weight[:32], 1e-5)).all()


def test_the_activation(compiled: Kernels) -> None:
    """Over everything that float32 holds: the exponential is our own."""
    gate = torch.cat((torch.linspace(-120, 120, 4096), torch.logspace(-30, 30, 2048), -torch.logspace(-30, 30, 2048)))
    gate = gate.view(8, 1024)
    up = torch.randn_like(gate)
    expected = torch.nn.functional.silu(gate.double()) * up.double()
    found = compiled.gated(torch.cat((gate, up), dim=1))
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=1e-7)
    nothing = compiled.gated(torch.full((1, 64), torch.nan))
    assert nothing.isnan().all()


def test_the_rotation(compiled: Kernels) -> None:
    x, table = torch.randn(3, 5, 32), torch.randn(9, 16)
    positions = torch.tensor([7, 0, 7])
    cos, sin = (torch.cat((part, part), dim=-1) for part in (table.cos(), table.sin()))
    turned = torch.cat((-x[..., 16:], x[..., :16]), dim=-1)
    cosines, sines = (angles[positions][:, None] for angles in (cos, sin))
    expected = torch.cat(((x * cosines + turned * sines)[:, :4], x[:, 4:]), dim=1)
    compiled.rotate(x, 4, cos, torch.cat((-sin[:, :16], sin[:, 16:]), dim=-1), positions)
    torch.testing.assert_close(x, expected)


def test_compiled_code_is_kept_and_damage_is_noticed(
    compiled: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLE_CHAT_CACHE", str(tmp_path))
    made: list[bytes] = []
    really = kernel_code._compile
    monkeypatch.setattr(kernel_code, "_compile", lambda *inputs: made.append(really(*inputs)) or made[-1])
    x, weight = torch.randn(3, 8), torch.randn(64, 8)
    for again in (False, True, True):
        kept = Kernels(compiled.machine)
        panels = kept.pack(weight)
        assert panels is not None
        torch.testing.assert_close(kept.product(x, panels), x @ weight.t())
        (path,) = (tmp_path / "kernels").iterdir()
        assert len(made) == 1, again
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    for damaged in (bytes(content), content[: len(content) // 2], b""):
        path.write_bytes(damaged)
        Kernels(compiled.machine)
        assert path.read_bytes()[kernel_code.DIGEST :] == made[-1]
    assert len(made) == 4


def best(compiled: Kernels, logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    found = compiled.best(logits, count)
    assert found is not None
    return found


@pytest.mark.parametrize("count", [1, 2, 4, 10, 64])
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_the_best_of_a_row(compiled: Kernels, scale: float, count: int) -> None:
    logits = torch.randn(3, 512) * scale
    ids, values = best(compiled, logits, count)
    expected = logits.topk(count)
    assert torch.equal(ids, expected.indices)
    torch.testing.assert_close(values, logits.log_softmax(dim=-1).gather(1, ids), rtol=1e-6, atol=2e-6)
    assert float(values.max()) <= 0.0


def test_the_best_where_many_are_equal_or_unusable(compiled: Kernels) -> None:
    ids, values = best(compiled, torch.zeros(2, 64), 5)
    assert ids.tolist() == [[0, 1, 2, 3, 4]] * 2
    torch.testing.assert_close(values, torch.full((2, 5), -math.log(64.0)))
    rising = torch.arange(64.0)[None]
    assert best(compiled, rising, 3)[0].tolist() == [[63, 62, 61]]
    rising[0, 61] = -torch.inf
    assert best(compiled, rising, 3)[0].tolist() == [[63, 62, 60]]
    few = torch.full((2, 64), -torch.inf)
    few[:, 7:9] = 1.0
    ids, values = best(compiled, few, 2)
    assert ids.tolist() == [[7, 8]] * 2
    torch.testing.assert_close(values, torch.full((2, 2), -math.log(2.0)))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_the_best_of_unusable_rows_is_left_to_others(compiled: Kernels, value: float) -> None:
    logits = torch.full((2, 64), value)
    logits[0] = torch.arange(64.0)
    logits[1, :2] = 1.0
    assert compiled.best(logits, 3) is None
    assert compiled.best(logits[:1], 3) is not None
