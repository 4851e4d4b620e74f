"""The embedded model's GGUF file -> a plain transformers folder.

Written out here, rather than by transformers' own GGUF reader, because that one loses what this model needs:
its tokenizer comes without the splitting of digits, so "  12" gets other tokens than the model was trained
on, and its model cannot be saved. This is also several times faster.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle_chat.core.errors import EagleChatError
from eagle_chat.core.progress import Report

if TYPE_CHECKING:
    import torch
    from gguf import GGUFReader
    from tokenizers import Tokenizer

_TOP_LEVEL = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL


def convert(gguf: Path, folder: Path, report: Report) -> None:
    """Writes model.safetensors (bf16), config, generation config, tokenizer and chat template into `folder`.

    Raises EagleChatError when the file is not the Llama-shaped, byte-level-BPE model this is written for.
    """
    from gguf import GGUFReader

    report("Preparing the default model (once)", 0.0)
    reader = GGUFReader(gguf)
    config = _config(reader)
    if (pre_tokenizer := _value(reader, "tokenizer.ggml.pre")) != "smollm":
        raise EagleChatError(f"the pre-tokenizer 'smollm' was expected in {gguf}, found '{pre_tokenizer}'")
    _write_json(folder / "config.json", config)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", {"_from_model_config": False, **ids})
    _write_tokenizer(reader, folder, config)
    _write_weights(reader, folder, config, report)


def _value(reader: GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise EagleChatError(f"the model file lacks the entry '{key}'")
    return field.contents()


def _config(reader: GGUFReader) -> dict[str, Any]:
    """The config.json of the model, in the spelling both ends of the tested transformers range read."""
    if (architecture := _value(reader, "general.architecture")) != "llama":
        raise EagleChatError(f"a file of the architecture 'llama' was expected, found '{architecture}'")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": _value(reader, "llama.embedding_length"),
        "intermediate_size": _value(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _value(reader, "llama.block_count"),
        "num_attention_heads": _value(reader, "llama.attention.head_count"),
        "num_key_value_heads": _value(reader, "llama.attention.head_count_kv"),
        "head_dim": _value(reader, "llama.rope.dimension_count"),
        "max_position_embeddings": _value(reader, "llama.context_length"),
        # The file keeps a float32 (9.99999975e-06); the model was made with the decimal number.
        "rms_norm_eps": float(f"{_value(reader, 'llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_parameters": {"rope_type": "default", "rope_theta": _value(reader, "llama.rope.freq_base")},
        "attention_bias": False,
        "mlp_bias": False,
        # A Llama file without a tensor `output.weight` uses its embedding for the output.
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in reader.tensors),
        "vocab_size": len(_value(reader, "tokenizer.ggml.tokens")),
        "bos_token_id": _value(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _value(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": _value(reader, "tokenizer.ggml.padding_token_id"),
        "dtype": "bfloat16",
    }


def _write_tokenizer(reader: GGUFReader, folder: Path, config: dict[str, Any]) -> None:
    tokens: list[str] = _value(reader, "tokenizer.ggml.tokens")
    _build_tokenizer(reader, tokens).save(str(folder / "tokenizer.json"), pretty=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "bos_token": tokens[config["bos_token_id"]],
        "eos_token": tokens[config["eos_token_id"]],
        "pad_token": tokens[config["pad_token_id"]],
        "unk_token": tokens[_value(reader, "tokenizer.ggml.unknown_token_id")],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", settings)
    template = _value(reader, "tokenizer.chat_template")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8", newline="")


def _build_tokenizer(reader: GGUFReader, tokens: list[str]) -> Tokenizer:
    """The byte-level BPE of SmolLM: every digit is split off first, then GPT-2's pattern."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocab = {token: index for index, token in enumerate(tokens)}
    pairs = (merge.partition(" ") for merge in _value(reader, "tokenizer.ggml.merges"))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[(left, right) for left, _, right in pairs]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = _value(reader, "tokenizer.ggml.token_type")
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer


def _write_weights(reader: GGUFReader, folder: Path, config: dict[str, Any], report: Report) -> None:
    import numpy as np
    import torch
    from gguf import dequantize
    from safetensors.torch import save_file

    weights: dict[str, torch.Tensor] = {}
    num_tensors = len(reader.tensors)
    for done, tensor in enumerate(reader.tensors, start=1):
        values = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)  # [out, in], owned
        weight = torch.from_numpy(values)
        if ".attn_q." in tensor.name:
            weight = _unpermute(weight, config["num_attention_heads"])
        elif ".attn_k." in tensor.name:
            weight = _unpermute(weight, config["num_key_value_heads"])
        weights[_tensor_name(tensor.name)] = weight.to(torch.bfloat16).contiguous()
        report("Preparing the default model (once)", 0.95 * done / num_tensors)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _tensor_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    if name in _TOP_LEVEL:
        return _TOP_LEVEL[name]
    match name.split("."):
        case ["blk", index, part, "weight"] if part in _IN_BLOCK:
            return f"model.layers.{index}.{_IN_BLOCK[part]}.weight"
    raise EagleChatError(f"the model file has a tensor '{name}' that is not part of a Llama model")


def _unpermute(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Query and key rows back from GGUF's pairs (x0, y0, x1, y1, …) to the halves (x0, x1, …, y0, y1, …)."""
    rows, columns = weight.shape  # [heads * head_dim, H]
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
