"""The contract of everything that carries a group to a server and events back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Protocol, TypeAlias

from radixflow_sdk._events import RequestEnded, RequestSent
from radixflow_sdk._messages import BranchEvent, GroupRequest

Emit: TypeAlias = Callable[[RequestSent | RequestEnded], None]


class Transport(Protocol):
    """Carries requests; decides nothing about them.

    Implementations hold no state of a group between calls, and run under asyncio and
    trio. They raise `APIError` and its subclasses only.
    """

    async def models(self) -> tuple[str, ...]:
        """Names of the served models, the default one first.

        Raises:
            APIError: The server could not be asked.
        """
        ...

    async def stats(self) -> Mapping[str, Any]:
        """The scheduler's statistics, as docs/wire.md has them.

        Raises:
            APIError: The server could not be asked, or has no plug-in.
        """
        ...

    def stream(self, request: GroupRequest) -> AsyncGenerator[BranchEvent, None]:
        """Send one request; yield its events as they come.

        Yields `GroupStarted` first and `GroupCompleted` last; an answer that ends
        before that raises `StreamBrokenError`. Events name branches by `Branch.index`.
        Closing the generator closes the answer, and with it the server's work.

        Raises:
            APIError: The request failed.
        """
        ...

    async def aclose(self) -> None:
        """Give back connections. Does not end calls that are under way."""
        ...
