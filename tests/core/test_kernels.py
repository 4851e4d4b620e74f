"""Our own matrix products: right for every shape of block, processor and combination of arguments."""

from __future__ import annotations

import pytest
import torch

from eagle_chat.core import kernel_ir, kernels
from eagle_chat.core.kernels import Machine, Products, describe

MACHINES = {
    "AVX-512": ("x86_64", {"avx512f": True, "avx2": True, "fma": True}, Machine(16, 32)),
    "AVX2": ("x86_64", {"avx2": True, "fma": True}, Machine(8, 16)),
    "NEON": ("aarch64", {"neon": True}, Machine(4, 32)),
    "SSE": ("x86_64", {"sse2": True}, None),
}


@pytest.fixture(scope="module")
def products() -> Products:
    found = kernels.products()
    if found is None:
        pytest.skip("no kernels for this processor")
    return found


@pytest.mark.parametrize("name", MACHINES)
def test_what_a_processor_gets(name: str) -> None:
    architecture, features, expected = MACHINES[name]
    assert describe(architecture, features) == expected
    if expected is not None:  # sums, weights and one input fit in the registers
        assert (expected.rows + 1) * expected.vectors + 1 <= expected.registers


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 8, 12, 13, 24, 61])
def test_the_product(products: Products, rows: int, dtype: torch.dtype) -> None:
    for outputs, depth in ((products.machine.panel, 1), (96, 7), (192, 40)):
        weight, x = torch.randn(outputs, depth).to(dtype), torch.randn(rows, depth)
        bias, add = torch.randn(outputs), torch.randn(rows, outputs)
        panels = products.pack(weight)
        assert panels is not None
        assert torch.equal(kernels.unpack(panels), weight)
        plain = x.double() @ weight.double().t()
        for given_bias in (None, bias):
            for given_add in (None, add):
                expected = plain + sum(given.double() for given in (given_bias, given_add) if given is not None)
                found = products.run(x, panels, given_bias, given_add)
                torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_row_is_the_same_to_the_last_bit_whatever_is_beside_it(products: Products, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = torch.randn(24, 96)
        panels = products.pack(torch.randn(192, 96).bfloat16())
        assert panels is not None
        together = products.run(x, panels)
        for rows in (1, 3, 8, 17):
            assert torch.equal(products.run(x[:rows], panels), together[:rows])
        assert torch.equal(products.run(x[5:6], panels), together[5:6])
    finally:
        torch.set_num_threads(before)


def test_rows_that_are_not_contiguous(products: Products) -> None:
    weight, x = torch.randn(64, 32), torch.randn(4, 64)[:, ::2]
    panels = products.pack(weight)
    assert panels is not None
    torch.testing.assert_close(products.run(x, panels), x @ weight.t())


def test_what_does_not_fit_is_left_to_others(products: Products) -> None:
    assert products.pack(torch.randn(products.machine.panel + 1, 8)) is None
    assert products.pack(torch.randn(64, 8).half()) is None


@pytest.mark.parametrize("machine", [Machine(16, 32), Machine(8, 16), Machine(4, 32)])
@pytest.mark.parametrize("parallel", [False, True])
def test_the_code_is_valid_for_every_machine(machine: Machine, parallel: bool) -> None:
    from llvmlite import binding

    binding.initialize_native_target()
    module = binding.parse_assembly(kernel_ir.module(machine, ["f32", "bf16"], parallel))
    module.verify()
    assert {"product_f32", "product_bf16"} <= {function.name for function in module.functions}
