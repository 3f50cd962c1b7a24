"""The contract of a transport: a group goes to a server, and its events come back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Protocol, TypeAlias

from radixflow_sdk._events import RequestEnded, RequestSent
from radixflow_sdk._messages import BranchEvent, GroupRequest

Emit: TypeAlias = Callable[[RequestSent | RequestEnded], None]


class Transport(Protocol):
    """Sends single requests.

    Implementations keep no state of a group between calls, run under asyncio and trio,
    and raise only `APIError` and its subclasses.
    """

    async def models(self) -> tuple[str, ...]:
        """Names of the served models, the default one first.

        Raises:
            APIError: The request failed.
        """
        ...

    async def stats(self) -> Mapping[str, Any]:
        """The scheduler's statistics, as docs/wire.md has them.

        Raises:
            APIError: The request failed, or the server has no plug-in.
        """
        ...

    def stream(self, request: GroupRequest) -> AsyncGenerator[BranchEvent, None]:
        """Send one request; yield its events as they arrive.

        Yields `GroupStarted` first and `GroupCompleted` last; an answer that ends early
        raises `StreamBrokenError`. Events name branches by `Branch.index`.
        Closing the generator closes the answer, and with it the server's work.

        Raises:
            APIError: The request failed.
        """
        ...

    async def aclose(self) -> None:
        """Close idle connections. Calls in progress go on."""
        ...
