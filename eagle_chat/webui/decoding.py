"""Work for the engine's thread: answers as events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from eagle_chat.core.config import SamplingConfig, TreeConfig
from eagle_chat.core.events import Committed, Event, Finished, Started
from eagle_chat.core.metrics import Metrics

if TYPE_CHECKING:
    from eagle_chat.core.chat import Message
    from eagle_chat.core.engine import Engine
    from eagle_chat.core.state import DecodingState


def answer_events(
    engine: Engine,
    messages: Sequence[Message],
    tree: TreeConfig,
    sampling: SamplingConfig,
    stopping: Callable[[], bool],
    state: DecodingState | None = None,
) -> Iterator[Event]:
    """The events of one answer, draft trees included. Where `stopping` says so it ends after the cycle, with the
    reason "cancelled"."""
    metrics = Metrics()
    if tree.policy != "none" and engine.head is None:
        tree = TreeConfig(policy="none")
    with closing(engine.stream(messages, sampling=sampling, tree=tree, state=state, trace=True)) as events:
        for event in events:
            metrics.add(event)
            yield event
            if stopping() and isinstance(event, Started | Committed) and metrics.finished is None:
                yield Finished("cancelled", "", metrics.cycles, len(metrics.token_ids))
                return
