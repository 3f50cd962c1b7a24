"""`RadixFlow`: the client for code without an event loop.

An event loop in a thread, with a `RadixFlowClient` in it. The signatures are taken from
the asynchronous methods.

A fork copies no thread, so a client belongs to the process that made it: in a forked
child every call is refused, and closing or dropping the client does nothing.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from radixflow_sdk._client import RadixFlowClient
from radixflow_sdk._config import RetryPolicy, Timeouts
from radixflow_sdk._many import Outcomes
from radixflow_sdk._requests import RouteChoice
from radixflow_sdk._results import Outcome, RequestT, ResultT
from radixflow_sdk._transport import HTTPClient, Transport
from radixflow_sdk.exceptions import ClientClosedError

P = ParamSpec("P")
T = TypeVar("T")


def _wait(client: RadixFlow, work: Callable[[], Awaitable[T]]) -> T:
    """What work in the loop comes to; what interrupts the wait (Ctrl-C) cancels it."""
    portal = client._open_portal()
    try:
        future = portal.start_task_soon(work)
    except RuntimeError:
        client._open_portal()  # another thread has just closed the client
        raise
    try:
        return future.result()
    except CancelledError:
        client._open_portal()
        raise
    except BaseException:
        future.cancel()
        raise


def _blocks(
    method: Callable[Concatenate[RadixFlowClient, P], Awaitable[T]],
) -> Callable[Concatenate[RadixFlow, P], T]:
    @functools.wraps(method)
    def call(self: RadixFlow, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _wait(self, functools.partial(method, self._client, *args, **kwargs))

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
    # A step that was interrupted may still be on its way out. Made in the loop that it
    # belongs to: in this thread another one may run.
    turn = client._open_portal().call(anyio.Lock)

    async def step() -> tuple[T] | None:
        async with turn:
            try:
                return (await anext(items),)
            except StopAsyncIteration:
                return None

    async def close() -> None:
        async with turn:
            await items.aclose()

    client._loop.streams.add(items)
    try:
        while (item := _wait(client, step)) is not None:
            yield item[0]
    finally:
        if (portal := client._loop.portal) is not None:
            portal.call(close)  # a closed loop has closed it
            client._loop.streams.discard(items)


def _gathers(
    method: Callable[Concatenate[RadixFlowClient, P], Outcomes[RequestT, ResultT]],
) -> Callable[
    Concatenate[RadixFlow, P], Generator[Outcome[RequestT, ResultT], None, None]
]:
    @functools.wraps(method)
    def call(
        self: RadixFlow, /, *args: P.args, **kwargs: P.kwargs
    ) -> Generator[Outcome[RequestT, ResultT], None, None]:
        self._open_portal()
        return _drain_block(
            self, functools.partial(method, self._client, *args, **kwargs)
        )

    return call


def _drain_block(
    client: RadixFlow, start: Callable[[], Outcomes[RequestT, ResultT]]
) -> Generator[Outcome[RequestT, ResultT], None, None]:
    @asynccontextmanager
    async def block() -> AsyncGenerator[Outcomes[RequestT, ResultT], None]:
        async with start() as outcomes:
            yield outcomes

    manager = client._open_portal().wrap_async_context_manager(block())
    outcomes = manager.__enter__()
    try:
        yield from _drain(client, _each(outcomes))
    finally:
        if client._loop.portal is not None:
            manager.__exit__(None, None, None)


async def _each(
    outcomes: Outcomes[RequestT, ResultT],
) -> AsyncGenerator[Outcome[RequestT, ResultT], None]:
    async for outcome in outcomes:
        yield outcome


def _views(
    method: Callable[Concatenate[RadixFlowClient, P], RadixFlowClient],
) -> Callable[Concatenate[RadixFlow, P], RadixFlow]:
    @functools.wraps(method)
    def call(self: RadixFlow, /, *args: P.args, **kwargs: P.kwargs) -> RadixFlow:
        view = object.__new__(type(self))
        view._client = method(self._client, *args, **kwargs)
        view._loop = self._loop
        return view

    return call


class _Loop:
    """The thread and its event loop, shared by a client and its views.

    It ends with `end`, with the last of them, or with Python: at exit while the loop
    still runs, since later its thread stands still and waiting for it has no end.

    Attributes:
        process: The process that has the thread.
        end: Ends it, once.
        streams: Asynchronous generators that it has begun.
    """

    def __init__(self, client: RadixFlowClient) -> None:
        started: Future[BlockingPortal] = Future()
        # Not anyio's `start_blocking_portal`: its generator ends the loop wherever it
        # is dropped, and in a forked child there is none that could end.
        thread = threading.Thread(
            target=_serve, args=(started,), name="radixflow", daemon=True
        )
        thread.start()
        self._portal = started.result()
        self.process = os.getpid()
        self.streams: set[AsyncGenerator[Any, None]] = set()
        _LOOPS.add(self)
        self.end = weakref.finalize(
            self, _end, self.process, thread, self._portal, client, self.streams
        )

    @property
    def portal(self) -> BlockingPortal | None:
        """The way into the loop; None once it ended, and in a forked child."""
        here = self.end.alive and self.process == os.getpid()
        return self._portal if here else None


_LOOPS: weakref.WeakSet[_Loop] = weakref.WeakSet()


def _leak_loops() -> None:
    """Keep the parent's loops in a forked child for ever, even as Python ends.

    Whatever runs in them would report its end, from a generator's finalizer.
    """
    for loop in _LOOPS:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(loop))


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_leak_loops)


def _serve(started: Future[BlockingPortal]) -> None:
    async def serve() -> None:
        async with BlockingPortal() as portal:
            started.set_result(portal)
            await portal.sleep_until_stopped()

    try:
        anyio.run(serve)
    except BaseException as error:  # noqa: BLE001 - for the thread that waits for it
        if not started.done():
            started.set_exception(error)


def _end(
    process: int,
    thread: threading.Thread,
    portal: BlockingPortal,
    client: RadixFlowClient,
    streams: set[AsyncGenerator[Any, None]],
) -> None:
    if process != os.getpid():
        return

    async def close() -> None:
        # Left to the event loop's own end, a generator closes outside of its task.
        for items in tuple(streams):
            if not getattr(items, "ag_running", False):
                await items.aclose()
        await client.aclose()

    try:
        portal.call(close)
    finally:
        portal.call(portal.stop, True)
        thread.join()


class RadixFlow:
    """Scores candidates on a RadixFlow server, in calls that block: for scripts and
    notebooks, inside a running event loop too.

    Takes the arguments of `RadixFlowClient`. Use it as ``with RadixFlow(...) as
    client``, or call `close`; one that is left open ends with Python. Any number of
    threads may share one.

    Raises:
        InvalidInputError: A setting is not usable.
    """

    generate_all = _blocks(RadixFlowClient.generate_all)
    generate_branches = _blocks(RadixFlowClient.generate_branches)
    generate_many = _gathers(RadixFlowClient.generate_many)
    models = _blocks(RadixFlowClient.models)
    rerank = _blocks(RadixFlowClient.rerank)
    run = _blocks(RadixFlowClient.run)
    score_all = _blocks(RadixFlowClient.score_all)
    score_candidates = _blocks(RadixFlowClient.score_candidates)
    score_letters = _blocks(RadixFlowClient.score_letters)
    score_many = _gathers(RadixFlowClient.score_many)
    stats = _blocks(RadixFlowClient.stats)
    stream_candidates = _iterates(RadixFlowClient.stream_candidates)
    with_options = _views(RadixFlowClient.with_options)

    # Spelled out, for type checkers; a test holds it to the client's own signature.
    def __init__(
        self,
        base_url: str | Sequence[str] | None = None,
        *,
        api_key: str | None = None,
        model: str | None = None,
        timeout: Timeouts | float | None = None,
        retry: RetryPolicy | None = None,
        max_connections: int = 16,
        http_client: HTTPClient | None = None,
        transport: Transport | None = None,
        cache_salt: str | None = None,
        route: RouteChoice = "auto",
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
            route=route,
        )
        self._loop = _Loop(self._client)

    def _open_portal(self) -> BlockingPortal:
        portal = self._loop.portal
        if portal is not None:
            return portal
        if self._loop.process != os.getpid():
            raise ClientClosedError(
                f"The client was made in process {self._loop.process}, before a fork; "
                "make one in each process."
            )
        raise ClientClosedError("The client is closed; make a new one.")

    def __reduce__(self) -> NoReturn:
        raise TypeError("A client cannot be copied; make one in each process.")

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
        self._loop.end()
