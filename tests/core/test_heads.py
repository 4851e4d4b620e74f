from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from eagle_chat.core import masks
from eagle_chat.core.errors import EagleChatError, HeadMismatchError, UserError
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.heads.checkpoint import Checkpoint, build_head, check_taps, read_checkpoint
from eagle_chat.core.heads.spec import default_taps
from eagle_chat.core.heads.vocabulary import draft_ids
from eagle_chat.core.target import Target
from tests.tiny import HIDDEN, VOCAB, head_files, make_head, make_model, make_target

TARGET = make_target()
LENGTH = 7
KINDS = ["eagle", "eagle3"]


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.inference_mode():
        yield


# A head written down a second time, from the papers alone: no cache, no library layers.


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    return x / (x.pow(2).mean(dim=-1, keepdim=True) + eps).sqrt() * weight


def frequencies(rope: dict[str, Any], dim: int) -> Tensor:
    """Angles per position, [dim / 2], by the formulas of RoPE, of its linear scaling, and of Llama-3.1's."""
    plain = rope.get("theta", 10000.0) ** (-torch.arange(0, dim, 2).double() / dim)
    if rope.get("kind") == "linear":
        return plain / rope["factor"]
    if rope.get("kind") != "llama3":
        return plain
    scaled = []
    for frequency in plain.tolist():
        length = 2 * math.pi / frequency
        low, high, original = rope["low_freq_factor"], rope["high_freq_factor"], rope["original"]
        if length < original / high:
            scaled.append(frequency)
        elif length > original / low:
            scaled.append(frequency / rope["factor"])
        else:
            smooth = (original / length - low) / (high - low)
            scaled.append((1 - smooth) * frequency / rope["factor"] + smooth * frequency)
    return torch.tensor(scaled, dtype=torch.float64)


def rotated(x: Tensor, positions: Tensor, rope: dict[str, Any]) -> Tensor:
    """Rotary position embedding of x [M, heads, dim]."""
    angles = (positions.double()[:, None] * frequencies(rope, x.shape[-1])).float()[:, None, :]
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()), dim=-1)


class Naive:
    """Both architectures over a whole sequence. `w`: the file's tensors under their published names."""

    def __init__(self, files: Checkpoint, rope: dict[str, Any] | None = None, target: Target = TARGET) -> None:
        self.w, self.config, self.rope, self.target = files.tensors, files.config, rope or {}, target

    def linear(self, name: str, x: Tensor) -> Tensor:
        return functional.linear(x, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"))

    def attention(self, layer: str, x: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        heads, kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        count = x.shape[0]
        q, k, v = (self.linear(f"{layer}self_attn.{name}_proj", x) for name in "qkv")
        dim = q.shape[1] // heads
        q = rotated(q.view(count, heads, dim), positions, self.rope)
        k = rotated(k.view(count, kv_heads, dim), positions, self.rope).repeat_interleave(heads // kv_heads, dim=1)
        v = v.view(count, kv_heads, dim).repeat_interleave(heads // kv_heads, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(dim)
        weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
        mixed = torch.einsum("hqk,khd->qhd", weights, v).reshape(count, heads * dim)
        return self.linear(f"{layer}self_attn.o_proj", mixed)

    def mlp(self, layer: str, x: Tensor) -> Tensor:
        gate = functional.silu(self.linear(f"{layer}mlp.gate_proj", x))
        return self.linear(f"{layer}mlp.down_proj", gate * self.linear(f"{layer}mlp.up_proj", x))

    def embed(self, tokens: Tensor) -> Tensor:
        own = self.w.get("embed_tokens.weight")
        return own[tokens] if own is not None else self.target.model.get_input_embeddings().weight[tokens]

    def eagle(self, tokens: Tensor, features: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        x = self.linear("fc", torch.cat((self.embed(tokens), features), dim=-1))
        for index in range(sum(name.endswith("self_attn.q_proj.weight") for name in self.w)):
            layer = f"layers.{index}."
            norm = self.w.get(f"{layer}input_layernorm.weight")
            x = x + self.attention(layer, x if norm is None else rms_norm(x, norm), positions, seen)
            x = x + self.mlp(layer, rms_norm(x, self.w[f"{layer}post_attention_layernorm.weight"]))
        return x

    def fused(self, features: Tensor) -> Tensor:
        norms = [name for name in self.w if name.startswith("fc_norm.")]
        parts = features.chunk(max(len(norms), 1), dim=-1)
        if norms:
            parts = tuple(rms_norm(part, self.w[f"fc_norm.{i}.weight"]) for i, part in enumerate(parts))
        return self.linear("fc", torch.cat(parts, dim=-1))

    def eagle3(self, tokens: Tensor, hidden: Tensor, positions: Tensor, seen: Tensor) -> Tensor:
        layer = "midlayer."
        embedded = rms_norm(self.embed(tokens), self.w[f"{layer}input_layernorm.weight"])
        normed = rms_norm(hidden, self.w[f"{layer}hidden_norm.weight"])
        residual = normed if self.config.get("norm_before_residual") else hidden
        x = residual + self.attention(layer, torch.cat((embedded, normed), dim=-1), positions, seen)
        x = x + self.mlp(layer, rms_norm(x, self.w[f"{layer}post_attention_layernorm.weight"]))
        return rms_norm(x, self.w["norm.weight"]) if self.config.get("norm_output") else x

    def run(
        self, kind: str, tokens: Tensor, features: Tensor, positions: Tensor, seen: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Outputs and logits for target features."""
        if kind == "eagle":
            output = self.eagle(tokens, features, positions, seen)
            return output, self.target.model.get_output_embeddings().weight.matmul(output.T).T
        output = self.eagle3(tokens, self.fused(features), positions, seen)
        normed = output if self.config.get("norm_output") else rms_norm(output, self.w["norm.weight"])
        return output, self.linear("lm_head", normed)


def inputs(head: DraftHead, seed: int = 0, length: int = LENGTH) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(3, VOCAB, (length,), generator=generator)
    return tokens, torch.randn(length, head.spec.feature_size, generator=generator)


def run(head: DraftHead, tokens: Tensor, features: Tensor, positions: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    output = head(tokens, head.fuse(features), positions, seen, head.new_cache(64))
    return output, head.logits(output)


def logits_of(head: DraftHead, seed: int = 0) -> Tensor:
    tokens, features = inputs(head, seed)
    return run(head, tokens, features, torch.arange(LENGTH), masks.causal_matrix(LENGTH))[1]


def random(*shape: int, seed: int = 9) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def with_tensors(files: Checkpoint, **tensors: Tensor) -> Checkpoint:
    """Files with more tensors, "." written as "__"."""
    return Checkpoint(files.config, {**files.tensors, **{k.replace("__", "."): v for k, v in tensors.items()}})


def two_layers() -> Checkpoint:
    files, more = head_files("eagle", TARGET), head_files("eagle", TARGET, seed=5)
    second = {k.replace("layers.0.", "layers.1."): v for k, v in more.tensors.items() if k.startswith("layers.0.")}
    return Checkpoint(
        files.config, {**files.tensors, **second, "layers.1.input_layernorm.weight": 1 + random(HIDDEN) / 9}
    )


def biases(kind: str, names: str) -> Checkpoint:
    files = head_files(kind, TARGET)
    layer = "midlayer." if kind == "eagle3" else "layers.0."
    sizes = {"q": 32, "k": 16, "v": 16, "o": HIDDEN}
    return with_tensors(
        files, **{f"{layer}self_attn.{name}_proj.bias": random(sizes[name], seed=ord(name)) for name in names}
    )


def mlp_biases(kind: str) -> Checkpoint:
    layer = "midlayer." if kind == "eagle3" else "layers.0."
    sizes = {"gate": 64, "up": 64, "down": HIDDEN}
    return with_tensors(
        head_files(kind, TARGET), **{f"{layer}mlp.{n}_proj.bias": random(s, seed=s + len(n)) for n, s in sizes.items()}
    )


def narrow() -> Checkpoint:
    """A head of half the target's width."""
    half = HIDDEN // 2
    shapes = {
        "fc.weight": (half, 3 * HIDDEN),
        "midlayer.self_attn.q_proj.weight": (32, HIDDEN + half),
        "midlayer.self_attn.k_proj.weight": (16, HIDDEN + half),
        "midlayer.self_attn.v_proj.weight": (16, HIDDEN + half),
        "midlayer.self_attn.o_proj.weight": (half, 32),
        "midlayer.mlp.gate_proj.weight": (24, half),
        "midlayer.mlp.up_proj.weight": (24, half),
        "midlayer.mlp.down_proj.weight": (half, 24),
        "midlayer.post_attention_layernorm.weight": (half,),
        "midlayer.hidden_norm.weight": (half,),
        "midlayer.input_layernorm.weight": (HIDDEN,),
        "norm.weight": (half,),
        "lm_head.weight": (VOCAB, half),
    }
    config = head_files("eagle3", TARGET).config
    tensors = {name: random(*shape, seed=i) * 0.3 + (len(shape) == 1) for i, (name, shape) in enumerate(shapes.items())}
    return Checkpoint({**config, "hidden_size": half, "target_hidden_size": HIDDEN}, tensors)


def wide_heads(kind: str) -> Checkpoint:
    """head_dim 16 where hidden / heads is 8."""
    files = head_files(kind, TARGET, head_dim=16)
    layer = "midlayer." if kind == "eagle3" else "layers.0."
    width = files.tensors[f"{layer}self_attn.q_proj.weight"].shape[1]
    sizes = {"q": (64, width), "k": (32, width), "v": (32, width), "o": (HIDDEN, 64)}
    return with_tensors(
        files, **{f"{layer}self_attn.{n}_proj.weight": random(*s, seed=ord(n)) * 0.3 for n, s in sizes.items()}
    )


NORMS = {f"fc_norm__{i}__weight": 1 + random(HIDDEN, seed=i) / 3 for i in range(3)}
VARIANTS: dict[str, Callable[[], tuple[str, Checkpoint]]] = {
    "eagle": lambda: ("eagle", head_files("eagle", TARGET)),
    "eagle with fc bias": lambda: ("eagle", with_tensors(head_files("eagle", TARGET), fc__bias=random(HIDDEN))),
    "eagle with two layers": lambda: ("eagle", two_layers()),
    "eagle with q, k, v biases": lambda: ("eagle", biases("eagle", "qkv")),
    "eagle with all attention biases": lambda: ("eagle", biases("eagle", "qkvo")),
    "eagle with mlp biases": lambda: ("eagle", mlp_biases("eagle")),
    "eagle with wide heads": lambda: ("eagle", wide_heads("eagle")),
    "eagle with own embeddings": lambda: (
        "eagle", with_tensors(head_files("eagle", TARGET), embed_tokens__weight=random(VOCAB, HIDDEN))
    ),
    "eagle3": lambda: ("eagle3", head_files("eagle3", TARGET)),
    "eagle3 with fc bias": lambda: ("eagle3", with_tensors(head_files("eagle3", TARGET), fc__bias=random(HIDDEN))),
    "eagle3 with q, k, v biases": lambda: ("eagle3", biases("eagle3", "qkv")),
    "eagle3 with all attention biases": lambda: ("eagle3", biases("eagle3", "qkvo")),
    "eagle3 with mlp biases": lambda: ("eagle3", mlp_biases("eagle3")),
    "eagle3 with wide heads": lambda: ("eagle3", wide_heads("eagle3")),
    "eagle3 with own embeddings": lambda: (
        "eagle3", with_tensors(head_files("eagle3", TARGET), embed_tokens__weight=random(VOCAB, HIDDEN))
    ),
    "eagle3 with draft vocabulary": lambda: ("eagle3", head_files("eagle3", TARGET, draft_vocab=20)),
    "eagle3 with norm_before_residual": lambda: ("eagle3", head_files("eagle3", TARGET, norm_before_residual=True)),
    "eagle3 with norm_output": lambda: ("eagle3", head_files("eagle3", TARGET, norm_output=True)),
    "eagle3 with a norm for each tap": lambda: (
        "eagle3", with_tensors(head_files("eagle3", TARGET, norm_before_fc=True), **NORMS)
    ),
    "eagle3 with one norm over all taps": lambda: (
        "eagle3", with_tensors(head_files("eagle3", TARGET), fc_norm__0__weight=1 + random(3 * HIDDEN) / 3)
    ),
    "eagle3.1": lambda: (
        "eagle3",
        with_tensors(
            head_files("eagle3", TARGET, norm_before_fc=True, norm_output=True, norm_before_residual=True), **NORMS
        ),
    ),
    "eagle3 of half the width": lambda: ("eagle3", narrow()),
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_head_computes_what_the_papers_say(variant: str) -> None:
    kind, files = VARIANTS[variant]()
    head, notes = build_head(files, TARGET)
    assert notes == []
    assert head.spec.architecture == kind
    naive = Naive(files)
    tokens, features = inputs(head)
    positions = torch.arange(3, 3 + LENGTH)
    parents = [-1, 0, 0, 1, 1, 2, 5]
    for seen in (masks.causal_matrix(LENGTH), masks.ancestor_matrix(parents)):
        output, logits = run(head, tokens, features, positions, seen)
        expected_output, expected_logits = naive.run(kind, tokens, features, positions, seen)
        torch.testing.assert_close(output, expected_output, atol=2e-4, rtol=1e-4)
        torch.testing.assert_close(logits, expected_logits, atol=5e-4, rtol=1e-4)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in KINDS])
def test_every_variant_changes_the_numbers(variant: str) -> None:
    """Otherwise the comparison above would pass for a head that ignores it."""
    kind, files = VARIANTS[variant]()
    head = build_head(files, TARGET)[0]
    plain = make_head(kind, TARGET)
    tokens, features = inputs(head)
    seen = masks.causal_matrix(LENGTH)
    ours = run(head, tokens, features, torch.arange(LENGTH), seen)
    if "half" in variant or "vocabulary" in variant:
        assert ours[0].shape[-1] != HIDDEN or ours[1].shape[-1] != VOCAB
        return
    theirs = run(plain, tokens, features, torch.arange(LENGTH), seen)
    assert not all(torch.allclose(own, other, atol=1e-2) for own, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_fed_back_as_they_are(kind: str) -> None:
    """A drafted entry takes the head's own output without `fc` over taps, one place further on."""
    files = head_files(kind, TARGET)
    head, naive = build_head(files, TARGET)[0], Naive(files)
    tokens, features = inputs(head)
    cache = head.new_cache(64)
    first = head(tokens, head.fuse(features), torch.arange(LENGTH), masks.causal_matrix(LENGTH), cache)
    cache.commit(list(range(LENGTH)))
    second = head(torch.tensor([42]), first[-1:], torch.tensor([LENGTH]), None, cache)
    end = LENGTH + 1
    arguments = (torch.cat((tokens, torch.tensor([42]))), torch.arange(end), masks.causal_matrix(end))
    hidden = torch.cat((features if kind == "eagle" else naive.fused(features), first[-1:]))
    expected = getattr(naive, kind)(arguments[0], hidden, *arguments[1:])
    torch.testing.assert_close(second[0], expected[-1], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("config", "rope"),
    [
        ({}, {}),
        ({"rope_theta": 500000.0}, {"theta": 500000.0}),
        ({"rope_theta": None}, {}),
        ({"rope_scaling": None, "rope_theta": 1000}, {"theta": 1000.0}),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 250.0}}, {"theta": 250.0}),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, {"kind": "linear", "factor": 4.0}),
        (
            {
                "rope_theta": 500000.0,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
            },
            {
                "theta": 500000.0, "kind": "llama3", "factor": 8.0,
                "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original": 64,
            },
        ),
    ],
)  # fmt: skip
def test_positions_turn_as_the_heads_own_config_says(kind: str, config: dict[str, Any], rope: dict[str, Any]) -> None:
    """Not as the target's does: published heads were trained with the default angle."""
    target = make_target(rope_parameters={"rope_type": "default", "rope_theta": 77.0})
    files = head_files(kind, target, **config)
    head = build_head(files, target)[0]
    tokens, features = inputs(head)
    positions = torch.arange(40, 40 + LENGTH)
    seen = masks.causal_matrix(LENGTH)
    found = run(head, tokens, features, positions, seen)[0]
    expected = Naive(files, rope, target).run(kind, tokens, features, positions, seen)[0]
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)
    unlike = Naive(files, {"theta": 77.0}, target).run(kind, tokens, features, positions, seen)[0]
    assert not torch.allclose(found, unlike, atol=1e-3)


def test_angles_stay_in_float32_in_a_half_precision_head() -> None:
    head = make_head("eagle3", Target(make_model().bfloat16(), "tiny"))
    assert head.rotary.inv_freq.dtype == torch.float32
    assert torch.equal(head.rotary.inv_freq, make_head("eagle3", TARGET).rotary.inv_freq)


# Files.


def save(folder: Path, files: Checkpoint, rename: Callable[[str], str] = str, name: str = "model.safetensors") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(files.config))
    tensors = {rename(key): value.clone() for key, value in files.tensors.items()}
    if name.endswith(".bin"):
        torch.save(tensors, folder / name)
    else:
        save_file(tensors, folder / name)
    return folder


RENAMED: dict[str, Callable[[str], str]] = {
    "layers": lambda name: name.replace("midlayer.", "layers.0."),
    "model": lambda name: f"model.{name}",
    "model and layers": lambda name: "model." + name.replace("midlayer.", "layers.0."),
}


@pytest.mark.parametrize("rename", RENAMED)
@pytest.mark.parametrize("kind", KINDS)
def test_one_head_under_any_names_is_one_head(tmp_path: Path, kind: str, rename: str) -> None:
    files = head_files(kind, TARGET)
    expected = logits_of(build_head(files, TARGET)[0])
    head, notes = build_head(read_checkpoint(save(tmp_path, files, RENAMED[rename])), TARGET)
    assert torch.equal(logits_of(head), expected)
    assert notes == []


def test_a_layer_config_inside_the_config_is_read(tmp_path: Path) -> None:
    files = head_files("eagle3", TARGET, rope_theta=250.0)
    expected = logits_of(build_head(files, TARGET)[0])
    nested = Checkpoint({"transformer_layer_config": files.config, "norm_before_residual": False}, files.tensors)
    assert torch.equal(logits_of(build_head(read_checkpoint(save(tmp_path, nested)), TARGET)[0]), expected)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in KINDS for name in head_files(kind, TARGET, draft_vocab=20).tensors]
)
def test_a_missing_tensor_is_named(kind: str, name: str) -> None:
    files = head_files(kind, TARGET, draft_vocab=20)
    if name == "t2d" or (kind == "eagle" and name == "d2t"):
        return  # not needed: d2t says everything, and that architecture has the target's vocabulary
    rest = {key: value for key, value in files.tensors.items() if key != name}
    with pytest.raises(HeadMismatchError, match=name.replace(".", r"\.")) as caught:
        build_head(Checkpoint(files.config, rest), TARGET)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [None, VOCAB])
def test_a_head_without_an_lm_head_takes_the_targets(size: int | None) -> None:
    files = head_files("eagle3", TARGET, draft_vocab_size=size)
    rest = {key: value for key, value in files.tensors.items() if key != "lm_head.weight"}
    head, notes = build_head(Checkpoint(files.config, rest), TARGET)
    assert notes == ["the head's file has no LM head: the target's is used"]
    whole = {**rest, "lm_head.weight": TARGET.model.get_output_embeddings().weight.detach()}
    expected = build_head(Checkpoint(files.config, whole), TARGET)[0]
    torch.testing.assert_close(logits_of(head), logits_of(expected))
    with torch.inference_mode():  # there both take the fast path
        torch.testing.assert_close(logits_of(head), logits_of(expected))


@pytest.mark.parametrize("config", [{"draft_vocab_size": 20}, {"tie_word_embeddings": True}])
def test_an_lm_head_that_was_lost_is_missed(config: dict[str, Any]) -> None:
    files = head_files("eagle3", TARGET, **config)
    rest = {key: value for key, value in files.tensors.items() if key != "lm_head.weight"}
    with pytest.raises(HeadMismatchError, match=r"lacks lm_head\.weight"):
        build_head(Checkpoint(files.config, rest), TARGET)


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in KINDS for name in head_files(kind, TARGET).tensors]
)
def test_a_misshapen_tensor_is_refused(kind: str, name: str) -> None:
    files = head_files(kind, TARGET)
    wrong = files.tensors[name][:-1]
    if name == "lm_head.weight":
        wrong = files.tensors[name][:, :-1]
    with pytest.raises(HeadMismatchError) as caught:
        build_head(Checkpoint(files.config, {**files.tensors, name: wrong}), TARGET)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_surplus_tensor_is_reported_by_name(kind: str) -> None:
    files = with_tensors(head_files(kind, TARGET), junk__weight=random(3), layer_scale=random(3))
    head, notes = build_head(files, TARGET)
    assert len(notes) == 1
    assert "junk.weight" in notes[0]
    assert "layer_scale" in notes[0]
    assert torch.equal(logits_of(head), logits_of(make_head(kind, TARGET)))


def test_computed_buffers_of_old_files_are_no_surplus() -> None:
    files = with_tensors(head_files("eagle", TARGET), layers__0__self_attn__rotary_emb__inv_freq=random(4))
    assert build_head(files, TARGET)[1] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_bias_is_what_the_file_says_and_not_the_config(kind: str) -> None:
    files = head_files(kind, TARGET, bias=True, attention_bias=True)
    assert torch.equal(logits_of(build_head(files, TARGET)[0]), logits_of(make_head(kind, TARGET)))
    biased = with_tensors(head_files(kind, TARGET, bias=False), fc__bias=random(HIDDEN))
    assert not torch.allclose(logits_of(build_head(biased, TARGET)[0]), logits_of(make_head(kind, TARGET)), atol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_own_embeddings_take_the_place_of_the_targets(kind: str) -> None:
    weight = TARGET.model.get_input_embeddings().weight
    files = head_files(kind, TARGET)
    plain = logits_of(make_head(kind, TARGET))
    same = build_head(with_tensors(files, embed_tokens__weight=weight.clone()), TARGET)[0]
    assert torch.equal(logits_of(same), plain)
    # A head that norms its embeddings does not see a factor, so the eagle3 one gets an offset as well.
    doubled = 2 * weight + (kind == "eagle3")
    assert not torch.allclose(
        logits_of(build_head(with_tensors(files, embed_tokens__weight=doubled), TARGET)[0]), plain, atol=1e-2
    )


def test_the_layout_is_read_from_the_weights_and_not_from_a_flag() -> None:
    files = head_files("eagle", TARGET, architectures=["LlamaForCausalLMEagle3"], num_hidden_layers=32)
    head = build_head(files, TARGET)[0]
    assert (head.spec.architecture, head.spec.num_layers) == ("eagle", 1)
    files = head_files("eagle3", TARGET, architectures=["LlamaForCausalLM"], model_type="eagle")
    assert build_head(files, TARGET)[0].spec.architecture == "eagle3"


@pytest.mark.parametrize("layers", [1, 8])
def test_a_whole_model_is_no_head(tmp_path: Path, layers: int) -> None:
    make_model(num_hidden_layers=layers).save_pretrained(tmp_path)
    with pytest.raises(HeadMismatchError, match="a draft head expected") as caught:
        build_head(read_checkpoint(tmp_path), TARGET)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_of_another_target_is_refused(kind: str) -> None:
    other = make_target(hidden_size=48, num_attention_heads=6)
    with pytest.raises(HeadMismatchError, match="another target") as caught:
        build_head(head_files(kind, other), TARGET)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (head_files("eagle3", TARGET, norm_before_fc=True), "norm_before_fc"),
        (head_files("eagle3", TARGET, eagle_config={"fc_norm": True}), "fc_norm"),
        (
            with_tensors(head_files("eagle3", TARGET), layers__1__mlp__gate_proj__weight=random(2, 2)),
            "further layers 1",
        ),
        (head_files("eagle", TARGET, num_attention_heads=None), "num_attention_heads"),
        (head_files("eagle", TARGET, num_attention_heads=5), "num_attention_heads"),
    ],
    ids=["norm_before_fc", "fc_norm", "layers", "no heads", "odd heads"],
)
def test_what_cannot_be_honoured_is_refused(files: Checkpoint, reason: str) -> None:
    with pytest.raises(HeadMismatchError, match=reason):
        build_head(files, TARGET)


def test_a_norm_flag_inside_the_eagle_config_counts() -> None:
    nested = build_head(head_files("eagle3", TARGET, eagle_config={"norm_before_residual": True}), TARGET)[0]
    root = build_head(head_files("eagle3", TARGET, norm_before_residual=True), TARGET)[0]
    assert torch.equal(logits_of(nested), logits_of(root))


@pytest.mark.parametrize("kind", KINDS)
def test_a_bin_file_alone_is_enough(tmp_path: Path, kind: str) -> None:
    files = head_files(kind, TARGET)
    head = build_head(read_checkpoint(save(tmp_path, files, name="pytorch_model.bin")), TARGET)[0]
    assert torch.equal(logits_of(head), logits_of(make_head(kind, TARGET)))


def test_safetensors_come_before_bin(tmp_path: Path) -> None:
    save(tmp_path, head_files("eagle", TARGET, seed=8), name="pytorch_model.bin")
    save(tmp_path, head_files("eagle", TARGET))
    assert torch.equal(
        logits_of(build_head(read_checkpoint(tmp_path), TARGET)[0]), logits_of(make_head("eagle", TARGET))
    )


class Evil:
    """Does something when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def test_a_bin_file_with_a_pickled_object_is_refused(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    save(tmp_path, head_files("eagle", TARGET))
    (tmp_path / "model.safetensors").unlink()
    torch.save({"fc.weight": torch.zeros(2), "extra": Evil(mark)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="cannot be read as plain tensors") as caught:
        read_checkpoint(tmp_path)
    assert "\n" not in str(caught.value)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("size", [0, 5, 1000])
def test_a_truncated_file_shows_the_original_error(tmp_path: Path, name: str, size: int) -> None:
    save(tmp_path, head_files("eagle", TARGET), name=name)
    file = tmp_path / name
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(UserError, match=r"cannot be read as plain tensors \(.{8,}\)") as caught:
        read_checkpoint(tmp_path)
    assert name in str(caught.value)
    assert caught.value.__cause__ is not None
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_no_head(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"config\.json expected"):
        read_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        read_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match="found neither"):
        read_checkpoint(tmp_path)


# Dtypes.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", [torch.float16, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("compute", [torch.bfloat16, torch.float32])
def test_a_head_runs_in_the_targets_dtype(kind: str, stored: torch.dtype, compute: torch.dtype) -> None:
    target = Target(make_model().to(compute), "tiny")
    files = head_files(kind, target, draft_vocab=20)
    tensors = {key: value.to(stored) if value.is_floating_point() else value for key, value in files.tensors.items()}
    head = build_head(Checkpoint(files.config, tensors), target)[0]
    assert {parameter.dtype for parameter in head.parameters()} == {compute}
    tokens, features = inputs(head)
    output, logits = run(head, tokens, features.to(compute), torch.arange(LENGTH), masks.causal_matrix(LENGTH))
    assert {output.dtype, logits.dtype} <= {compute, torch.float32}  # the fast path computes in float32
    assert torch.isfinite(logits).all()
    if kind == "eagle3":
        assert head.draft_ids is not None
        assert head.draft_ids.dtype == torch.int64


@pytest.mark.parametrize("kind", KINDS)
def test_packed_weights_of_a_target_do_not_become_the_heads_dtype(kind: str) -> None:
    """A 4-bit target stores its weights as uint8; what it computes in is another dtype."""
    model = make_model().bfloat16()
    for name, module in model.model.layers.named_modules():
        if name.endswith("_proj"):
            packed = torch.zeros(module.weight.numel() // 2, 1, dtype=torch.uint8)
            module.weight = torch.nn.Parameter(packed, requires_grad=False)
    target = Target(model, "packed")
    head = build_head(head_files(kind, target), target)[0]
    assert target.dtype == torch.bfloat16
    assert {parameter.dtype for parameter in head.parameters()} == {torch.bfloat16}


# The draft vocabulary.

IDS = torch.arange(20) * 4 + 1
OFFSETS = IDS - torch.arange(20)
MASK = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, IDS, True)


@pytest.mark.parametrize("offsets", [torch.int64, torch.int32, torch.int16])
@pytest.mark.parametrize("mask", [torch.bool, torch.uint8, torch.int64, None])
def test_a_good_map(offsets: torch.dtype, mask: torch.dtype | None) -> None:
    found = draft_ids(OFFSETS.to(offsets), None if mask is None else MASK.to(mask), 20, VOCAB)
    assert found is not None
    assert found.dtype == torch.int64
    assert torch.equal(found, IDS)


def test_the_first_tokens_are_a_good_map_when_the_mask_says_so() -> None:
    """All offsets are then 0, which alone could as well be a file that was never filled."""
    zeros = torch.zeros(20, dtype=torch.int64)
    found = draft_ids(zeros, torch.arange(VOCAB) < 20, 20, VOCAB)
    assert found is not None
    assert found.tolist() == list(range(20))
    with pytest.raises(HeadMismatchError, match="only zeros"):
        draft_ids(zeros, None, 20, VOCAB)


def changed(at: int, value: int) -> Tensor:
    offsets = OFFSETS.clone()
    offsets[at] = value
    return offsets


@pytest.mark.parametrize(
    ("d2t", "t2d", "reason"),
    [
        (None, MASK, "needs a map d2t"),
        (None, None, "needs a map d2t"),
        (torch.zeros(20, dtype=torch.int64), MASK, "different target ids"),
        (IDS, MASK, "different target ids|target ids of 0 to 96"),
        (changed(19, 90), MASK, "target ids of 0 to 96"),
        (changed(19, 90), None, "target ids of 0 to 96"),
        (changed(0, -1), MASK, "target ids of 0 to 96"),
        (changed(1, int(OFFSETS[0]) - 1), MASK, "20 different target ids"),
        (OFFSETS[:19], MASK, "20 offsets expected"),
        (OFFSETS, MASK[:-1], "one entry for each of 97"),
        (OFFSETS, ~MASK, "d2t and t2d"),
        (OFFSETS, torch.ones(VOCAB, dtype=torch.bool), "d2t and t2d"),
    ],
)
def test_a_map_that_is_none_is_refused_with_the_reason(d2t: Tensor | None, t2d: Tensor | None, reason: str) -> None:
    with pytest.raises(HeadMismatchError, match=reason) as caught:
        draft_ids(d2t, t2d, 20, VOCAB)
    assert "\n" not in str(caught.value)


def test_equal_vocabularies_need_no_map() -> None:
    assert draft_ids(None, None, VOCAB, VOCAB) is None
    assert draft_ids(torch.zeros(VOCAB, dtype=torch.int64), None, VOCAB, VOCAB) is None
    head = make_head("eagle3", TARGET)
    assert head.target_ids(torch.tensor([5, 96])).tolist() == [5, 96]


def test_a_head_speaks_in_target_ids() -> None:
    files = head_files("eagle3", TARGET, draft_vocab=20)
    head = build_head(files, TARGET)[0]
    expected = files.tensors["d2t"] + torch.arange(20)
    assert torch.equal(head.target_ids(torch.arange(20)), expected)
    assert logits_of(head).shape == (LENGTH, 20)
    assert set(expected.tolist()) == set(files.tensors["t2d"].nonzero().flatten().tolist())


# Taps.


@pytest.mark.parametrize(("layers", "taps"), [(3, (0, 1, 2)), (7, (2, 3, 4)), (8, (2, 4, 5)), (32, (2, 16, 29))])
def test_default_taps_go_from_low_to_high(layers: int, taps: tuple[int, ...]) -> None:
    assert check_taps(default_taps(layers), layers) == taps
    if layers < 10:
        target = make_target(num_hidden_layers=layers)
        assert make_head("eagle3", target).spec.taps == taps


@pytest.mark.parametrize("layers", [1, 2, 4, 5, 6])
def test_targets_too_shallow_for_three_taps_are_refused(layers: int) -> None:
    target = make_target(num_hidden_layers=layers)
    with pytest.raises(HeadMismatchError, match=f"three different taps of 0 to {layers} expected.*--taps"):
        make_head("eagle3", target)
    if layers > 2:
        assert make_head("eagle3", target, eagle_aux_hidden_state_layer_ids=[0, 1, layers]).spec.taps == (0, 1, layers)


def test_ids_in_the_root_are_inputs_of_layers_and_nested_ones_outputs() -> None:
    root = make_head("eagle3", TARGET, eagle_aux_hidden_state_layer_ids=[1, 3, 6])
    nested = make_head("eagle3", TARGET, eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 6]})
    assert root.spec.taps == (1, 3, 6)
    assert nested.spec.taps == (2, 4, 7)


def test_taps_are_joined_from_low_to_high_whatever_their_order() -> None:
    """Other engines gather them while the layers run, so the order in a config means nothing."""
    assert make_head("eagle3", TARGET, eagle_aux_hidden_state_layer_ids=[6, 1, 3]).spec.taps == (1, 3, 6)
    assert check_taps((5, 0, 2), 8) == (0, 2, 5)


def test_taps_of_the_user_rule() -> None:
    files = head_files("eagle3", TARGET, eagle_aux_hidden_state_layer_ids=[1, 3, 6])
    assert build_head(files, TARGET, (0, 2, 8))[0].spec.taps == (0, 2, 8)


@pytest.mark.parametrize("taps", [(1, 3, 9), (-1, 2, 3), (2, 2, 3), (1, 2), (1, 2, 3, 4)])
def test_taps_that_are_none_are_refused(taps: tuple[int, ...]) -> None:
    with pytest.raises(EagleChatError, match="three different taps of 0 to 8 expected"):
        check_taps(taps, 8)
    with pytest.raises(HeadMismatchError, match="three different taps"):
        make_head("eagle3", TARGET, eagle_aux_hidden_state_layer_ids=list(taps))


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_those_hidden_states(kind: str) -> None:
    head = make_head(kind, TARGET)
    tokens = torch.arange(10, 16)
    output = TARGET.forward(tokens, torch.arange(6), masks.causal_matrix(6), TARGET.new_cache(16), head.spec.taps)
    states = TARGET.model(tokens[None], output_hidden_states=True).hidden_states
    chosen = (states[-1],) if kind == "eagle" else (states[2], states[4], states[5])
    expected = torch.cat([state[0] for state in chosen], dim=-1)
    torch.testing.assert_close(output.features, expected, atol=1e-4, rtol=1e-4)
    if kind == "eagle":  # after the final norm: the LM head reads it as it is
        torch.testing.assert_close(TARGET.lm_head(expected), output.logits, atol=1e-4, rtol=1e-4)
