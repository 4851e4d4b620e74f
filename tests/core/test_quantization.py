"""8-bit and 4-bit targets on a CPU: still lossless, still fit for a head, and refused where they cannot be."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from eagle_chat import SamplingConfig, TreeConfig, load_engine
from eagle_chat.core import loading
from eagle_chat.core.config import LoadConfig
from eagle_chat.core.engine import Engine
from eagle_chat.core.errors import UserError
from eagle_chat.core.quantization import bits, guard, quantization_config
from tests import tiny
from tests.core.test_loading import save_head, save_tokenizer

TREE = TreeConfig("dynamic", depth=3, top_k=3, total_tokens=8)
CPU = torch.device("cpu")
OPTIONS = ["load_in_8bit", "load_in_4bit"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("pair")
    tiny.make_model("llama").save_pretrained(folder / "target")
    save_tokenizer(folder / "target")
    save_head(folder / "head", tiny.head_files("eagle3", tiny.make_target("llama"), draft_vocab=40))
    return str(folder / "target"), str(folder / "head")


@pytest.fixture(scope="module", params=OPTIONS)
def engine(request: pytest.FixtureRequest, pair: tuple[str, str]) -> Engine:
    pytest.importorskip("bitsandbytes")
    base, draft = pair
    return load_engine(base=base, draft=draft, dtype="float32", device="cpu", **{request.param: True})


def layers(engine: Engine, name: str) -> list[Any]:
    return [module for module in engine.target.model.modules() if type(module).__name__ == name]


def test_the_layers_are_quantised_and_the_head_is_not(engine: Engine) -> None:
    few = bits(engine.target.model)
    kind = "Linear4bit" if few == 4 else "Linear8bitLt"
    assert len(layers(engine, kind)) == 7 * tiny.LAYERS
    assert engine.target.dtype == torch.float32
    assert engine.target.model.get_output_embeddings().weight.dtype == torch.float32
    assert engine.head is not None
    assert {parameter.dtype for parameter in engine.head.parameters()} == {torch.float32}
    if few == 4:
        state = layers(engine, kind)[0].weight.quant_state
        assert (state.quant_type, state.nested) == ("nf4", True)


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 5}])
def test_lossless_against_plain_decoding_of_the_same_quantised_target(engine: Engine, options: dict[str, Any]) -> None:
    sampling = SamplingConfig(max_new_tokens=24, ignore_stop_ids=True, **options)
    for prompt in tiny.prompts(2):
        plain = tiny.answer(engine, prompt, sampling=sampling, tree=tiny.PLAIN)
        assert tiny.answer(engine, prompt, sampling=sampling, tree=TREE) == plain
        if not options:
            assert plain == tiny.generate(engine.target.model, prompt, 24)


@torch.inference_mode()
def test_a_token_does_not_depend_on_the_others_of_its_forward(engine: Engine) -> None:
    """The default 8-bit threshold takes columns out for all rows where one row has a large number."""
    layer = layers(engine, "Linear4bit" if bits(engine.target.model) == 4 else "Linear8bitLt")[0]
    row, large = torch.randn(1, 1, tiny.HIDDEN), torch.full((1, 1, tiny.HIDDEN), 50.0)
    torch.testing.assert_close(layer(torch.cat((row, large), dim=1))[:, :1], layer(row), rtol=1e-5, atol=1e-5)


def test_guards_are_set(engine: Engine) -> None:
    for layer in layers(engine, "Linear4bit"):
        assert layer.support_avx512bf16_for_cpu is False
    for layer in layers(engine, "Linear8bitLt"):
        assert layer.state.threshold == 0.0
        assert layer.training  # inputs are not rounded to 8 bits on a CPU


def test_without_the_guard_8bit_inputs_are_rounded(pair: tuple[str, str]) -> None:
    """What the guard is for: one step in the last place of a float must not become one of 1/127."""
    bnb: Any = pytest.importorskip("bitsandbytes")
    torch.manual_seed(0)
    layer = bnb.nn.Linear8bitLt(64, 64, bias=False, has_fp16_weights=False, threshold=0.0).to("cpu").eval()
    inputs = torch.randn(4, 64)
    weight = layer.weight.CB.float() * (layer.weight.SCB[:, None] / 127)
    exact = inputs @ weight.T
    with torch.inference_mode():
        rounded = layer(inputs)
        guard(torch.nn.Sequential(layer))
        kept = layer(inputs)
    torch.testing.assert_close(kept, exact, rtol=1e-5, atol=1e-5)
    assert float((rounded - exact).abs().max()) > 1e-3


@pytest.mark.parametrize("option", OPTIONS)
def test_without_bitsandbytes_the_error_gives_the_install_line(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(UserError, match=r"pip install 'eagle-chat\[quant\]'") as caught:
        quantization_config(LoadConfig(**{option: True}), torch.float32, CPU)
    assert f"--{option.replace('_', '-')}" in str(caught.value)


@pytest.mark.parametrize("option", OPTIONS)
def test_a_device_without_kernels_is_refused(option: str) -> None:
    with pytest.raises(UserError, match="--device cpu"):
        quantization_config(LoadConfig(**{option: True}), torch.float32, torch.device("mps"))


def test_matrices_are_multiplied_in_the_dtype_of_the_model() -> None:
    pytest.importorskip("bitsandbytes")
    made = quantization_config(LoadConfig(load_in_4bit=True), torch.float16, CPU)
    assert made.bnb_4bit_compute_dtype == torch.float16
    assert quantization_config(LoadConfig(load_in_8bit=True), torch.float16, CPU).llm_int8_threshold == 0.0


def test_an_mps_device_that_cannot_do_it_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here there is none at all, which fails in the same place as one without float64."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    device, notes = loading.choose_device(LoadConfig())
    assert device.type == "cpu"
    assert "MPS" in notes[0]
    with pytest.raises(UserError, match="--device cpu"):
        loading.choose_device(LoadConfig(device="mps"))
    # Quantised targets go to the CPU at once: there are no kernels of that kind for MPS.
    assert loading.choose_device(LoadConfig(load_in_4bit=True)) == (CPU, [])
