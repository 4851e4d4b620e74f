"""The loop. Plain decoding, chains, static and dynamic trees are one program with different policies.

One cycle: the head drafts a tree, the target sees it in a single forward, a rule accepts one path, and what is kept
is committed. `docs/structure.md` tells the same on one page.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from eagle_chat.core import captured, masks, sampling, trace
from eagle_chat.core.chat import Chat, Message
from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.cost_measuring import Costs
from eagle_chat.core.costs import CostsOf, CostTable
from eagle_chat.core.drafting import NoDraft
from eagle_chat.core.errors import UserError
from eagle_chat.core.events import Committed, Event, Finished, FinishReason, Started
from eagle_chat.core.growth import DraftInput
from eagle_chat.core.guide import Guide
from eagle_chat.core.heads.base import DraftHead
from eagle_chat.core.laps import Laps
from eagle_chat.core.noise import TargetNoise
from eagle_chat.core.policies import Policy, describe, resolve, shares_noise, tree_defaults
from eagle_chat.core.state import DecodingState
from eagle_chat.core.stopping import Stopper
from eagle_chat.core.target import Target
from eagle_chat.core.transfer import sent
from eagle_chat.core.tree import DraftTree, UnreadTree
from eagle_chat.core.verification import UnusableLogitsError, verify

PREFILL_CHUNK = 512
"""Prompt tokens per forward: bounds the mask's memory, and how long an interrupt has to wait."""
RESERVE = 256
"""Answer tokens for which caches are allocated ahead."""


class Engine:
    """A target with its tokenizer, perhaps a draft head, and the loop over them. One conversation at a time."""

    def __init__(
        self,
        target: Target,
        chat: Chat,
        head: DraftHead | None = None,
        head_name: str | None = None,
        defaults: TreeConfig | None = None,
        notes: Sequence[str] = (),
        costs: CostsOf | None = None,
    ) -> None:
        """`costs`: for trees chosen by what they cost; None: measured on this machine when first needed."""
        self.target, self.chat, self.head, self.head_name = target, chat, head, head_name
        architecture = head.spec.architecture if head is not None else "eagle3"
        self.defaults = defaults or tree_defaults(architecture, target.device.type)
        self._costs = costs or Costs(target, head).table
        self.known_costs: CostTable | None = None
        """The table asked for last, if any was."""
        self._notes = list(notes)

    def costs(self, num_tokens: int) -> CostTable:
        """What drafting and verifying cost here at a context of `num_tokens`; slow where it was never measured."""
        self.known_costs = self._costs(num_tokens)
        return self.known_costs

    def new_state(self) -> DecodingState:
        """A fresh conversation."""
        head_cache = self.head.new_cache(RESERVE) if self.head is not None else None
        return DecodingState(self.target.new_cache(RESERVE), head_cache, owner=self)

    def describe(self) -> dict[str, Any]:
        """Target, head, device, dtype and versions, as JSON-ready values."""
        import transformers

        import eagle_chat

        versions = {
            "eagle_chat": eagle_chat.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        return {
            "target": self.target.name,
            "head": self.head_name,
            "device": str(self.target.device),
            "dtype": str(self.target.dtype).removeprefix("torch."),
            "versions": versions,
        }

    def stream(
        self,
        prompt: Sequence[Message] | Sequence[int],
        sampling: SamplingConfig | None = None,
        tree: TreeConfig | None = None,
        state: DecodingState | None = None,
        trace: bool = False,
    ) -> Generator[Event, None, None]:
        """Answer a conversation, or continue token ids, as events. See `events` for their order.

        `state` is that of the conversation (None: a fresh one); what it holds of the prompt is not computed again.
        With `trace` every cycle also yields `Drafted` and `Verified`. Closing the iterator at any moment, or an
        exception from outside, leaves a state that the next call can use. UserError for options that cannot be met.
        """
        sampling_config = sampling or SamplingConfig()
        tree = tree or TreeConfig()
        tokens = self._token_ids(prompt)
        policy, tree_config, notes = resolve(tree, self.head, self.defaults, lambda: self.costs(len(tokens)))
        shares = shares_noise(policy, tree, sampling_config)
        run = _Run(self, policy, sampling_config, shares, state or self.new_state(), trace)
        started = Started(
            prompt_tokens=len(tokens),
            reused_tokens=run.state.rewind(tokens, run.drafts),
            policy=tree_config.policy or "none",
            tree=describe(dataclasses.replace(tree_config, shared_noise=shares or None)),
            sampling=describe(sampling_config),
            notes=self._notes + notes + captured.notes(target=self.target, head=self.head),
            prompt=self.chat.text(tokens) if trace else None,
            **self.describe(),
        )
        yield started
        yield from run.events(tokens)

    def _token_ids(self, prompt: Sequence[Message] | Sequence[int]) -> list[int]:
        ids = [item for item in prompt if isinstance(item, int)]
        if len(ids) != len(prompt):
            ids = self.chat.encode([item for item in prompt if not isinstance(item, int)])
        if not ids:
            raise UserError("a prompt of at least one token expected, found an empty one: type something")
        if max(ids) >= self.target.vocab_size or min(ids) < 0:
            raise UserError(
                f"token ids of 0 to {self.target.vocab_size - 1} expected, found {max(ids)}: the tokenizer does not "
                "belong to this target"
            )
        return ids


class _Run:
    """One answer being made."""

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        config: SamplingConfig,
        shares_noise: bool,
        state: DecodingState,
        traced: bool,
    ) -> None:
        self.target, self.chat, self.policy, self.config, self.state = engine.target, engine.chat, policy, config, state
        self.head = None if isinstance(policy, NoDraft) else engine.head
        self.taps = self.head.spec.taps if self.head is not None else ()
        self.traced = traced
        self.number = state.begin(engine)
        self.noise = None if config.greedy else TargetNoise(config.seed, self.target.vocab_size, self.target.device)
        self.guide = Guide(policy, config, self.noise, shares_noise, state)

    @property
    def drafts(self) -> bool:
        """Whether a head takes part."""
        return self.head is not None

    def events(self, prompt: list[int]) -> Iterator[Event]:
        """Everything after `Started`."""
        stop_ids = () if self.config.ignore_stop_ids else self.chat.stop_ids
        room = self.target.context_limit - len(prompt)
        source = self.chat.detokenizer(prompt)
        self.stopper = Stopper(source, stop_ids, self.config.stop, self.config.max_new_tokens, room)
        self.cycles, self.output_tokens = 0, 0
        self.reason = self.stopper.exhausted()
        try:
            if self.reason is None:
                self.state.check(self.number)
                yield self._first_token(prompt)
            while self.reason is None:
                self.state.check(self.number)
                yield from self._cycle()
        except UnusableLogitsError as error:
            yield self._finished("error", str(error))
            return
        yield self._finished(self.reason, self._context_message(len(prompt)))

    def _context_message(self, prompt_tokens: int) -> str | None:
        if self.reason != "context":
            return None
        return (
            f"context full: the model's {self.target.context_limit} tokens are used up ({prompt_tokens} by the "
            "prompt); start a new conversation or shorten it"
        )

    def _finished(self, reason: FinishReason, message: str | None) -> Finished:
        return Finished(reason, self.stopper.flush(), self.cycles, self.output_tokens, message)

    @torch.inference_mode()
    def _first_token(self, prompt: list[int]) -> Committed:
        """Prefill what the caches lack of the prompt, and draw the token after it."""
        start = time.perf_counter()
        state = self.state
        self._reserve(len(prompt) + min(self.config.max_new_tokens, RESERVE))
        logits = torch.empty(0)
        while state.cache.length < len(prompt):
            chunk = prompt[state.cache.length : state.cache.length + PREFILL_CHUNK]
            positions = torch.arange(len(chunk)) + state.cache.length
            output = self.target.forward(
                torch.tensor(chunk), positions, masks.causal_matrix(len(chunk)), state.cache, self.taps, last_only=True
            )
            state.cache.commit(list(range(len(chunk))))
            if output.features is not None:
                state.pending = _joined(state.pending, output.features)
                self._feed_head()
            logits = output.logits
        if not sampling.is_usable(logits[-1]):
            raise UnusableLogitsError("the target's logits after the prompt hold NaN or infinity: try another --dtype")
        token = sampling.draw(logits[-1], len(prompt), self.config, self.noise)
        cut = self.stopper.offer([token])
        state.tokens.append(token)
        self.reason, self.output_tokens = cut.reason, 1
        seconds = {"prefill": time.perf_counter() - start}
        return Committed(0, [token], ["target"], cut.text, 0, 0, seconds, pieces=list(cut.pieces))

    @torch.inference_mode()
    def _cycle(self) -> list[Event]:
        """Draft, verify, accept, commit."""
        laps = Laps(self.target.device, self.traced)
        self.cycles += 1
        state = self.state
        root_position = len(state.tokens) - 1
        tree = self._draft(root_position)
        laps.end("draft")
        state.cache.reserve(state.cache.length + len(tree))
        tokens, depths, among = tree.inputs()
        output = self.target.forward(tokens, depths + root_position, among, state.cache, self.taps)
        laps.end("verify")
        acceptance = verify(tree, output.logits, root_position, self.config, self.noise)
        tree = tree.read()
        laps.end("sample")
        offered = [*(tree.tokens[slot] for slot in acceptance.path[1:]), acceptance.bonus]
        cut = self.stopper.offer(offered)
        laps.end("other")
        # The newest kept token has no cache entry: it is the next root. So k kept tokens keep k nodes, root included.
        kept_path = acceptance.path[: cut.keep]
        state.tokens.extend(offered[: cut.keep])
        state.cache.commit(kept_path)
        if output.features is not None:
            kept = sent(torch.tensor(kept_path), output.features.device)
            state.pending = _joined(state.pending, output.features[kept])
        laps.end("commit")
        self.reason = cut.reason
        self.output_tokens += cut.keep
        self.guide.observe(tree, acceptance)
        if self.noise is not None:
            self.noise.forget_before(len(state.tokens))
        levels = acceptance.levels(tree.children())
        events: list[Event] = []
        if self.traced:
            events.append(trace.drafted(self.cycles, tree, self.chat))
            events.append(trace.verified(self.cycles, tree, output.logits, acceptance, self.config, self.chat))
        laps.end("other")
        origins = trace.origins(len(acceptance.path) - 1, cut.keep)
        seconds = laps.seconds
        events.append(
            Committed(
                self.cycles,
                offered[: cut.keep],
                origins,
                cut.text,
                len(tree),
                len(acceptance.path) - 1,
                seconds,
                levels,
                list(cut.pieces),
            )
        )
        return events

    def _draft(self, root_position: int) -> DraftTree | UnreadTree:
        root = self.state.tokens[-1]
        room = self.stopper.left - 1  # the target's own token takes the last place
        if self.head is None or self.guide.rests:
            return DraftTree.of_root(root)
        hidden = self._feed_head()
        if room < 1:
            return DraftTree.of_root(root)
        assert self.state.head_cache is not None
        guide = self.guide
        start = DraftInput(hidden, root, root_position, self.state.head_cache, room, guide.pace, guide.calibration)
        return self.policy.draft(self.head, start, guide.rule)

    def _feed_head(self) -> Tensor:
        """Give the head every pending feature whose next token is known; its output for the last of them, [1, H]."""
        state = self.state
        assert self.head is not None and state.head_cache is not None and state.pending is not None
        at = state.head_cache.length
        count = min(state.pending.shape[0], len(state.tokens) - 1 - at)
        if count == 0:  # a prefill of one token: the token after it is not known yet
            return state.pending[:0]
        state.head_cache.reserve(at + count + self.policy.max_staged)
        drafter, positions = self.head.drafter(), list(range(at, at + count))
        fused, tokens = drafter.fuse(state.pending[:count]), state.tokens[at + 1 : at + 1 + count]
        among_new = masks.causal_matrix(count) if count > 1 else None
        hidden = drafter.run(tokens, fused, None, positions, among_new, state.head_cache)
        state.head_cache.commit(list(range(count)))
        state.pending = state.pending[count:]
        last: Tensor = hidden[-1:]
        return last

    def _reserve(self, num_tokens: int) -> None:
        self.state.cache.reserve(num_tokens + self.policy.max_nodes)
        if self.state.head_cache is not None:
            self.state.head_cache.reserve(num_tokens + self.policy.max_staged)


def _joined(first: Tensor | None, second: Tensor) -> Tensor:
    return second if first is None or first.shape[0] == 0 else torch.cat((first, second))
