"""What a server counts of its drafting, from its Prometheus page (vLLM's names)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

PREFIX = "vllm:spec_decode_num_"
DRAFTS, DRAFT_TOKENS = f"{PREFIX}drafts_total", f"{PREFIX}draft_tokens_total"
ACCEPTED, BY_POSITION = f"{PREFIX}accepted_tokens_total", f"{PREFIX}accepted_tokens_per_pos_total"
GENERATED = "vllm:generation_tokens_total"


@dataclass(frozen=True)
class Counters:
    """`drafts`: target forwards with a draft. `by_position[i]`: drafts whose token i, from 0, was accepted.
    `generated_tokens`: of all answers the server gave."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    by_position: dict[int, int] = field(default_factory=dict)
    generated_tokens: int = 0

    def since(self, earlier: Counters) -> Counters:
        """What was counted after `earlier`."""
        return Counters(
            self.drafts - earlier.drafts,
            self.draft_tokens - earlier.draft_tokens,
            self.accepted_tokens - earlier.accepted_tokens,
            {place: count - earlier.by_position.get(place, 0) for place, count in self.by_position.items()},
            self.generated_tokens - earlier.generated_tokens,
        )


def parse(page: str) -> Counters | None:
    """The counters of a Prometheus page, summed over its engines; None where it has none of drafting, or is no such
    page."""
    from prometheus_client.parser import text_string_to_metric_families

    totals: Counter[str] = Counter()
    by_position: Counter[int] = Counter()
    try:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name == BY_POSITION:
                    by_position[int(sample.labels["position"])] += round(sample.value)
                elif sample.name in (DRAFTS, DRAFT_TOKENS, ACCEPTED, GENERATED):
                    totals[sample.name] += round(sample.value)
    except (ValueError, KeyError):
        return None
    if DRAFTS not in totals:
        return None
    return Counters(totals[DRAFTS], totals[DRAFT_TOKENS], totals[ACCEPTED], dict(by_position), totals[GENERATED])
