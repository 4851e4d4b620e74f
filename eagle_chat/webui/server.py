"""A server behind the page, in the place of an engine in this process."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from eagle_chat.core.config import LoadConfig, SamplingConfig, TreeConfig
from eagle_chat.core.errors import UserError
from eagle_chat.webui.service import EngineService

if TYPE_CHECKING:
    from eagle_chat.core.chat import Message
    from eagle_chat.core.engine import Engine
    from eagle_chat.core.events import Event
    from eagle_chat.serving.config import ServerConfig
    from eagle_chat.serving.remote import RemoteEngine


@dataclass(frozen=True)
class NoState:
    """Stands for a conversation's decoding state: a server is told everything at each question."""

    owner: ServerEngine


class ServerEngine:
    """Has the methods and attributes of `Engine` that the page needs."""

    head = known_costs = None

    def __init__(self, remote: RemoteEngine) -> None:
        self._remote = remote

    def describe(self) -> dict[str, Any]:
        """As `RemoteEngine.describe`."""
        return self._remote.describe()

    def new_state(self) -> NoState:
        """A fresh conversation."""
        return NoState(self)

    def stream(
        self,
        prompt: Sequence[Message],
        sampling: SamplingConfig | None = None,
        tree: TreeConfig | None = None,
        state: NoState | None = None,
        trace: bool = False,
    ) -> Generator[Event, None, None]:
        """Answer a conversation as events, as `RemoteEngine.stream`."""
        return self._remote.stream(prompt, sampling)


def service_for_server(
    server: ServerConfig, load: LoadConfig, tree: TreeConfig, heads: Sequence[str] = ()
) -> EngineService:
    """The service of the server that `server` names, asked for `load.base` as `connect` does, which finds faults before
    there is a page. One question at a time is put to it, so that what it counts belongs to that answer.

    UserError where it has no such model, or `tree` or `heads` ask for drafts of another kind; ServerError where it
    cannot be reached.
    """
    if tree != TreeConfig() or heads:
        raise UserError(
            "a server drafts as it was started, found wishes for another draft: leave --policy, --depth, --top-k, "
            "--total-tokens and --head out"
        )
    from eagle_chat.serving.config import check_installed

    check_installed()
    from eagle_chat.serving.remote import connect

    remote = connect(server, load, lambda: service.stopping)
    service = EngineService(lambda: cast("Engine", ServerEngine(remote)), is_server=True)
    return service
