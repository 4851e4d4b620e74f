"""Events -> figures: τ, tokens/s, acceptance by depth, time split. Reads nothing but the events."""

from __future__ import annotations

from collections import Counter
from typing import Any

from eagle_chat.core.events import STAGES, Committed, Event, Finished, FinishReason, Reported, Started

WEAK_HEAD_CYCLES = 50
WEAK_HEAD_TAU = 1.1
SHOWN_DEPTHS = 3
"""Depths whose acceptance fits in the statistics line; `Metrics.summary` has them all."""


class Metrics:
    """Adds up the events of one run (or of several, for figures over a whole conversation)."""

    def __init__(self) -> None:
        self.started: Started | None = None
        self.finished: Finished | None = None
        self.reported: Reported | None = None
        self.token_ids: list[int] = []
        self.cycles = 0
        self._text: list[str] = []
        self._seconds: Counter[str] = Counter()
        self._time_to_first_token: float | None = None
        self._decoded_tokens = 0
        self._cycle_tokens = 0
        self.drafted_tokens = 0
        self._accept_lengths: Counter[int] = Counter()
        self._judged: Counter[int] = Counter()  # depth -> cycles that judged a drafted token there
        self._accepted: Counter[int] = Counter()  # depth -> cycles that accepted it
        self._drafted_cycles = 0
        self._drafted_cycle_tokens = 0

    def add(self, event: Event) -> None:
        """Take the next event of a run."""
        if isinstance(event, Started):
            self.started = event
            self.finished = self.reported = None
        elif isinstance(event, Committed):
            self._add_committed(event)
        elif isinstance(event, Reported):
            self._count_report(self.reported, -1)
            self._count_report(event, 1)
            self.reported = event
        elif isinstance(event, Finished):
            self.finished = event
            self._text.append(event.text)

    def _add_committed(self, event: Committed) -> None:
        self.token_ids.extend(event.token_ids)
        self._text.append(event.text)
        self._seconds.update(event.seconds)
        if event.cycle == 0:
            self._time_to_first_token = sum(event.seconds.values())
            return
        self._decoded_tokens += len(event.token_ids)
        if event.num_nodes == 0:  # a piece from a serving engine, which may be more or less than a cycle
            return
        self.cycles += 1
        self._cycle_tokens += len(event.token_ids)
        self.drafted_tokens += event.num_nodes - 1
        self._accept_lengths[event.accepted] += 1
        for depth, accepted in enumerate(event.levels):
            self._judged[depth] += 1
            self._accepted[depth] += accepted
        if event.num_nodes > 1:
            self._drafted_cycles += 1
            self._drafted_cycle_tokens += len(event.token_ids)

    def _count_report(self, report: Reported | None, sign: int) -> None:
        if report is None:
            return
        self.cycles += sign * report.cycles
        self._cycle_tokens += sign * (report.cycles + report.accepted_tokens)
        self.drafted_tokens += sign * report.draft_tokens
        self._judged.update({depth: sign * count for depth, count in enumerate(report.judged_by_position)})
        self._accepted.update({depth: sign * count for depth, count in enumerate(report.accepted_by_position)})

    @property
    def text(self) -> str:
        """The visible answer so far."""
        return "".join(self._text)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended; None while it has not."""
        return self.finished.reason if self.finished else None

    @property
    def was_cut(self) -> bool:
        """Whether somebody stopped it."""
        return self.finish_reason == "cancelled"

    @property
    def is_plain(self) -> bool:
        """Whether it was made without a draft."""
        return self.started is not None and self.started.policy == "none"

    @property
    def keeps_text(self) -> bool:
        """Whether plain decoding with the same seed gives this text: not so under the rejection rule above temperature
        0, which keeps only how likely each text is."""
        sampling = self.started.sampling if self.started else {}
        return not (sampling.get("verify") == "rejection" and sampling.get("temperature"))

    @property
    def tau(self) -> float | None:
        """Tokens committed per target forward of the decode phase; None without such a forward."""
        return self._cycle_tokens / self.cycles if self.cycles else None

    @property
    def accept_by_depth(self) -> list[float]:
        """At depth 1, 2, ...: of the cycles that had a drafted token to judge there, the share accepted."""
        return [accepted / judged for judged, accepted in self.counts_by_depth if judged]

    @property
    def counts_by_depth(self) -> list[tuple[int, int]]:
        """At depth 1, 2, ...: drafted tokens judged, and accepted."""
        return [(self._judged[depth], self._accepted[depth]) for depth in sorted(self._judged)]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt; 0 where they are not known."""
        if self.reported is not None and self.reported.prompt_tokens is not None:
            return self.reported.prompt_tokens
        return self.started.prompt_tokens if self.started else 0

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by stage, summed: prefill, then those of the decoding cycles."""
        return {stage: float(self._seconds[stage]) for stage in ("prefill", *STAGES)}

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of the decode phase over its seconds; None without a decoding cycle."""
        spent = sum(self._seconds[stage] for stage in STAGES)
        return self._decoded_tokens / spent if spent > 0 else None

    @property
    def weak_head_warning(self) -> str | None:
        """A sentence when enough cycles have shown that the head's drafts are hardly ever accepted."""
        if self._drafted_cycles < WEAK_HEAD_CYCLES:
            return None
        tau = self._drafted_cycle_tokens / self._drafted_cycles
        if tau >= WEAK_HEAD_TAU:
            return None
        return (
            f"this head does not seem to fit this target: at least {WEAK_HEAD_TAU} tokens a cycle expected, "
            f"found {tau:.2f} over {self._drafted_cycles} cycles: "
            "give the head made for this target (--draft), or --draft none"
        )

    def summary(self) -> dict[str, Any]:
        """The figures of one run as JSON-ready values."""
        started = self.started
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "completion_tokens": len(self.token_ids),
            },
            "tau": self.tau,
            "cycles": self.cycles,
            "accept_lengths": {str(length): self._accept_lengths[length] for length in sorted(self._accept_lengths)},
            "accept_by_depth": self.accept_by_depth,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens_per_second,
            "time_to_first_token": self._time_to_first_token,
            "seed": started.sampling.get("seed") if started else None,
            "config": _config(started) if started else {},
            "versions": dict(started.versions) if started else {},
        }

    def stats_line(self, ascii: bool = False) -> str:  # noqa: A002 - the word a caller looks for
        """The figures in one line for people; `ascii` for encodings without τ and the middle dot."""
        parts = [f"{len(self.token_ids)} tok"]
        if self.tokens_per_second is not None:
            parts.append(f"{self.tokens_per_second:.1f} tok/s")
        if self.tau is not None:
            parts.append(f"{'tau' if ascii else 'τ'} {self.tau:.2f} ({self.cycles} cycles)")
        if self.accept_by_depth:
            parts.append("accept " + "/".join(f"{share:.2f}" for share in self.accept_by_depth[:SHOWN_DEPTHS]))
        spent = sum(self._seconds[stage] for stage in STAGES)
        if spent > 0 and self._seconds["verify"] > 0:  # a serving engine does not split its time
            shares = (f"{stage} {self._seconds[stage] / spent:.0%}" for stage in ("draft", "verify"))
            parts.append(" ".join(shares))
        if self._time_to_first_token is not None:
            parts.append(f"TTFT {self._time_to_first_token:.2f}s")
        if self.started and "seed" in self.started.sampling:
            parts.append(f"seed {self.started.sampling['seed']}")
        if self.finish_reason not in (None, "stop"):
            parts.append(f"ended by {self.finish_reason}")
        return (" | " if ascii else " · ").join(parts)


def _config(started: Started) -> dict[str, Any]:
    names = ("target", "head", "policy", "tree", "sampling", "device", "dtype")
    return {name: getattr(started, name) for name in names}


def same_text(plain: Metrics, fast: Metrics) -> tuple[bool, str]:
    """Whether both runs gave the same tokens, and a sentence about it. A run that was cut short is held against the
    beginning of the other."""
    left, right = plain.token_ids, fast.token_ids
    cut = plain.was_cut or fast.was_cut
    length = min(len(left), len(right)) if cut else max(len(left), len(right))
    if left[:length] == right[:length]:
        count = "1 token" if length == 1 else f"{length} tokens"
        return True, f"same text: yes, token for token ({count}{' until the interruption' if cut else ''})"
    at = next(
        (place for place, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
    )
    return False, f"same text: no, they part at token {at + 1} of {length}: {_reason(fast)}"


def _reason(fast: Metrics) -> str:
    if not fast.keeps_text:
        return "the rejection rule keeps the law, not the draw; the coupled rule keeps the text too"
    dtype = fast.started.dtype if fast.started else ""
    if dtype != "float32":
        return f"in {dtype} two best tokens may tie within rounding; --dtype float32 shows whether that is all"
    return "this should not happen in float32; eagle-chat verify looks into it"
