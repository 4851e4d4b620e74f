"""Tiny random targets, heads and stub drafts, and the naive ways of computing what the engine computes cleverly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM

from eagle_chat.core.cache import TreeCache
from eagle_chat.core.captured import Steps
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.detokenizer import Detokenizer
from eagle_chat.core.engine import Engine
from eagle_chat.core.events import Committed, Event, Finished
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.heads.checkpoint import Checkpoint, build_head
from eagle_chat.core.target import Target

VOCAB, HIDDEN, LAYERS = 97, 32, 8
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # large enough that greedy answers do not fall into a loop of one token
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen3": ("Qwen3Config", {}),
    "mistral-window": ("MistralConfig", {"sliding_window": 8}),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "sliding_window": 8,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention"] * 3,
            "query_pre_attn_scalar": 8,
        },
    ),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}
"""The kinds of target that every lossless test runs on."""


def make_model(architecture: str = "llama", attention: str = "sdpa", seed: int = 0, **changes: Any) -> Any:
    """A random fp32 model of transformers, unmodified."""
    name, own = ARCHITECTURES[architecture]
    config = getattr(transformers, name)(**{**COMMON, **own, **changes})
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32).eval()


def make_target(architecture: str = "llama", attention: str = "sdpa", seed: int = 0, **changes: Any) -> Target:
    """The same as a Target."""
    return Target(make_model(architecture, attention, seed, **changes), f"tiny-{architecture}")


def head_files(kind: str, target: Target, seed: int = 1, draft_vocab: int = VOCAB, **config: Any) -> Checkpoint:
    """A random head in the published layout."""
    generator = torch.Generator().manual_seed(seed)
    hidden, width, size = target.hidden_size, 64, config.get("head_dim", 8)
    prefix = "midlayer." if kind == "eagle3" else "layers.0."
    inputs = 2 * hidden if kind == "eagle3" else hidden
    shapes = {
        "fc.weight": (hidden, (3 if kind == "eagle3" else 2) * hidden),
        f"{prefix}self_attn.q_proj.weight": (4 * size, inputs),
        f"{prefix}self_attn.k_proj.weight": (2 * size, inputs),
        f"{prefix}self_attn.v_proj.weight": (2 * size, inputs),
        f"{prefix}self_attn.o_proj.weight": (hidden, 4 * size),
        f"{prefix}mlp.gate_proj.weight": (width, hidden),
        f"{prefix}mlp.up_proj.weight": (width, hidden),
        f"{prefix}mlp.down_proj.weight": (hidden, width),
        f"{prefix}post_attention_layernorm.weight": (hidden,),
    }
    if kind == "eagle3":
        shapes |= {
            f"{prefix}hidden_norm.weight": (hidden,),
            f"{prefix}input_layernorm.weight": (hidden,),
            "norm.weight": (hidden,),
            "lm_head.weight": (draft_vocab, hidden),
        }
    tensors = {
        name: torch.randn(shape, generator=generator) * (0.3 if len(shape) == 2 else 0.1) + (len(shape) == 1)
        for name, shape in shapes.items()
    }
    if draft_vocab != VOCAB:
        ids = torch.randperm(VOCAB, generator=generator)[:draft_vocab].sort().values
        tensors["d2t"] = ids - torch.arange(draft_vocab)
        tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)
    settings = {"num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "hidden_size": hidden}
    return Checkpoint({**settings, **config}, tensors)


def make_head(kind: str, target: Target, seed: int = 1, draft_vocab: int = VOCAB, **config: Any) -> DraftHead:
    """A random head for a tiny target."""
    return build_head(head_files(kind, target, seed, draft_vocab, **config), target)[0]


class StubHead(DraftHead):
    """A draft that knows the answer: position t's output predicts token t+2 of `script`, as its child number
    `rank(t + 2)`; a rank of None stands for "not among the children at all"."""

    def __init__(self, target: Target, script: Sequence[int], rank: Any) -> None:
        torch.nn.Module.__init__(self)
        self.steps = Steps(wanted=False)
        shape = head_files("eagle", target)
        self.spec = build_head(shape, target)[0].spec
        self._script, self._rank = list(script), rank
        self._anchor = torch.nn.Parameter(torch.zeros(1))
        self.draft_ids = None

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def forward(self, tokens: Tensor, hidden: Tensor, positions: Tensor, among_new: Any, cache: TreeCache) -> Tensor:
        cache.stage(tokens.shape[0])
        return positions[:, None].float().expand(-1, hidden.shape[-1])

    def run_layers(self, embedded: Tensor, hidden: Tensor, **layer_inputs: object) -> Tensor:
        raise NotImplementedError

    def logits(self, hidden: Tensor) -> Tensor:
        rows = torch.full((hidden.shape[0], VOCAB), -20.0)
        for row, position in enumerate(hidden[:, 0].long().tolist()):
            at = position + 2
            right = self._script[at] if at < len(self._script) else 0
            wrong = [token for token in range(VOCAB) if token != right]
            rank = self._rank(at)
            order = wrong if rank is None else [*wrong[:rank], right, *wrong[rank:]]
            for place, token in enumerate(order[:8]):
                rows[row, token] = -0.5 * place
            if rank is None:
                rows[row, right] = -30.0
        return rows


STUBS = {"oracle": lambda at: 0, "anti": lambda at: None, "mix": lambda at: 0 if at % 2 else None}


class TinyChat:
    """Stands in for a tokenizer: token 7 is the word "t7 "."""

    def __init__(self, stop_ids: Sequence[int] = ()) -> None:
        self.stop_ids = frozenset(stop_ids)

    def encode(self, messages: Any) -> list[int]:
        return [3 + ord(letter) % 90 for message in messages for letter in message["content"]]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(f"t{token} " for token in token_ids)

    text = decode

    def detokenizer(self, prompt: Sequence[int] = ()) -> Detokenizer:
        return Detokenizer(self)

    def token_text(self, token_id: int) -> str:
        return f"t{token_id} "


def make_engine(target: Target, head: DraftHead | None = None, stop_ids: Sequence[int] = ()) -> Engine:
    """An engine over tiny parts."""
    return Engine(target, TinyChat(stop_ids), head, "tiny-head" if head is not None else None)  # type: ignore[arg-type]


def answer(engine: Engine, prompt: Sequence[int], **options: Any) -> list[int]:
    """The tokens of one answer."""
    return tokens_of(engine.stream(list(prompt), **options))


def tokens_of(events: Any) -> list[int]:
    """Committed tokens of a run."""
    return [token for event in events if isinstance(event, Committed) for token in event.token_ids]


def reason_of(events: Sequence[Event]) -> str:
    """Why a run ended."""
    last = events[-1]
    assert isinstance(last, Finished)
    return last.reason


def prompts(count: int, length: int = 8, seed: int = 3) -> list[list[int]]:
    """Random prompts."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB, (count, length), generator=generator).tolist()


@torch.inference_mode()
def generate(model: Any, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """transformers' own greedy answer."""
    ids = torch.tensor([list(prompt)])
    mask = torch.ones_like(ids)  # without it, generate takes a token with the padding's id for padding
    output = model.generate(
        ids, attention_mask=mask, max_new_tokens=num_tokens, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return output[0, len(prompt) :].tolist()


GREEDY64 = SamplingConfig(max_new_tokens=64)
PLAIN = TreeConfig(policy="none")
