"""`RadixFlow`: the client for code without an event loop.

A thin portal: an event loop in a thread of its own, with a `RadixFlowClient` in it. The
signatures are taken from the asynchronous methods, so there is no twin to keep in step.
This room must not contain behaviour.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import ExitStack
from types import TracebackType
from typing import Concatenate, ParamSpec, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from radixflow_sdk._client import RadixFlowClient
from radixflow_sdk._config import RetryPolicy, Timeouts
from radixflow_sdk._transport import HTTPClient, Transport
from radixflow_sdk.exceptions import ClientClosedError

P = ParamSpec("P")
T = TypeVar("T")


def _blocks(
    method: Callable[Concatenate[RadixFlowClient, P], Awaitable[T]],
) -> Callable[Concatenate[RadixFlow, P], T]:
    @functools.wraps(method)
    def call(self: RadixFlow, /, *args: P.args, **kwargs: P.kwargs) -> T:
        run = functools.partial(method, self._client, *args, **kwargs)
        return self._open_portal().call(run)

    return call


def _iterates(
    method: Callable[Concatenate[RadixFlowClient, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[RadixFlow, P], Generator[T, None, None]]:
    @functools.wraps(method)
    def call(
        self: RadixFlow, /, *args: P.args, **kwargs: P.kwargs
    ) -> Generator[T, None, None]:
        self._open_portal()
        return _drain(self, method(self._client, *args, **kwargs))

    return call


def _drain(
    client: RadixFlow, items: AsyncGenerator[T, None]
) -> Generator[T, None, None]:
    async def step() -> tuple[T] | None:
        try:
            return (await anext(items),)
        except StopAsyncIteration:
            return None

    try:
        while (item := client._open_portal().call(step)) is not None:
            yield item[0]
    finally:
        if client._portal is not None:  # else the closed loop has closed it
            client._portal.call(items.aclose)


class RadixFlow:
    """Scores candidates on a RadixFlow server, from code without an event loop.

    Takes the arguments of `RadixFlowClient`. Use it as ``with RadixFlow(...) as
    client``, or call `close`. Any number of threads may share one.

    Raises:
        InvalidInputError: A setting is not usable.
    """

    score_candidates = _blocks(RadixFlowClient.score_candidates)
    stream_candidates = _iterates(RadixFlowClient.stream_candidates)

    # Spelled out, for type checkers; a test holds it to the client's own signature.
    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        model: str | None = None,
        timeout: Timeouts | float | None = None,
        retry: RetryPolicy | None = None,
        max_connections: int = 16,
        http_client: HTTPClient | None = None,
        transport: Transport | None = None,
        cache_salt: str | None = None,
    ) -> None:
        self._client = RadixFlowClient(
            base_url,
            api_key=api_key,
            model=model,
            timeout=timeout,
            retry=retry,
            max_connections=max_connections,
            http_client=http_client,
            transport=transport,
            cache_salt=cache_salt,
        )
        self._exits = ExitStack()
        self._portal: BlockingPortal | None = self._exits.enter_context(
            start_blocking_portal(name="radixflow")
        )

    def _open_portal(self) -> BlockingPortal:
        if self._portal is None:
            raise ClientClosedError("The client is closed; make a new one.")
        return self._portal

    def __repr__(self) -> str:
        return repr(self._client).replace("RadixFlowClient", "RadixFlow", 1)

    def __enter__(self) -> RadixFlow:
        self._open_portal()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the client; calls under way in other threads end with an error."""
        portal, self._portal = self._portal, None
        if portal is not None:
            with self._exits:
                portal.call(self._client.aclose)
