"""Many groups with bounded memory.

Workers read requests one by one and put outcomes into a bounded buffer. Each outcome
that the reader consumes lets a worker read one more request, so a slow reader slows the
workers down, and memory does not depend on the number of requests.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Iterable,
    Sized,
)
from contextlib import aclosing
from types import TracebackType
from typing import Generic, Self

import anyio

from radixflow_sdk._dispatch import ScopedTasks
from radixflow_sdk._results import Outcome, Progress, RequestT, ResultT
from radixflow_sdk.exceptions import ClientClosedError, RadixFlowError, WrongLoopError

# Groups read and not yet consumed, for each worker: enough to keep all workers busy
# while the reader works, or while one slow group delays ordered outcomes.
_BUFFERED = 4


class Outcomes(Generic[RequestT, ResultT]):
    """The outcomes of many groups: an async context manager and iterator.

    Args:
        run: Runs one group.
        requests: The groups; read in the event loop, one at a time.
        concurrency: Maximum concurrent groups.
        ordered: Whether outcomes arrive in the order of the requests.
        raise_errors: Whether a failed group's error is raised in its place.
        progress: Called with a `Progress` after each outcome.
    """

    def __init__(
        self,
        run: Callable[[RequestT], Awaitable[ResultT]],
        requests: Iterable[RequestT] | AsyncIterable[RequestT],
        *,
        concurrency: int,
        ordered: bool,
        raise_errors: bool,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self._run = run
        self._requests = _read(requests)
        self._total = len(requests) if isinstance(requests, Sized) else None
        self._concurrency = concurrency
        self._ordered = ordered
        self._raise_errors = raise_errors
        self._progress = progress
        self._tasks = ScopedTasks()
        self._reading = anyio.Lock(fast_acquire=True)
        self._buffer = anyio.Semaphore(concurrency * _BUFFERED, fast_acquire=True)
        self._done: dict[int, Outcome[RequestT, ResultT]] = {}
        self._changed = anyio.Event()
        self._fatal: Exception | None = None
        self._read_count = self._consumed = self._failed = 0
        self._working = 0
        self._began = 0.0

    async def __aenter__(self) -> Self:
        self._began = anyio.current_time()
        tasks = await self._tasks.__aenter__()
        self._working = self._concurrency
        for _ in range(self._concurrency):
            tasks.start_soon(self._work)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        try:
            return await self._tasks.__aexit__(kind, error, traceback)
        finally:
            await self._requests.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Outcome[RequestT, ResultT]:
        while (outcome := self._next()) is None:
            if self._working == 0:
                raise self._fatal or StopAsyncIteration
            self._changed = anyio.Event()
            await self._changed.wait()
        self._buffer.release()
        self._consumed += 1
        self._failed += outcome.error is not None
        if self._progress is not None:
            self._progress(
                Progress(
                    done=self._consumed,
                    failed=self._failed,
                    total=self._total,
                    elapsed=anyio.current_time() - self._began,
                )
            )
        if outcome.error is not None and self._raise_errors:
            raise outcome.error
        return outcome

    def _next(self) -> Outcome[RequestT, ResultT] | None:
        if not self._done:
            return None
        first = self._consumed if self._ordered else next(iter(self._done))
        return self._done.pop(first, None)

    async def _work(self) -> None:
        try:
            while True:
                await self._buffer.acquire()
                if self._fatal is not None:
                    break
                async with self._reading:
                    request = await anext(self._requests)
                    index, self._read_count = self._read_count, self._read_count + 1
                self._done[index] = await self._outcome(index, request)
                self._changed.set()
        except StopAsyncIteration:
            pass  # no more requests
        except Exception as error:  # noqa: BLE001 - from the requests, or closed
            self._fatal = self._fatal or error
        finally:
            self._working -= 1
            self._changed.set()
            self._buffer.release()  # wake the next worker, so that it ends too

    async def _outcome(
        self, index: int, request: RequestT
    ) -> Outcome[RequestT, ResultT]:
        try:
            result = await self._run(request)
        except (ClientClosedError, WrongLoopError):
            raise
        except RadixFlowError as error:
            return Outcome(index=index, request=request, error=error)
        return Outcome(index=index, request=request, result=result)


async def gathered(
    many: Outcomes[RequestT, ResultT],
) -> tuple[Outcome[RequestT, ResultT], ...]:
    """Every outcome, in the order of arrival."""
    async with many as outcomes:
        return tuple([outcome async for outcome in outcomes])


async def _read(
    requests: Iterable[RequestT] | AsyncIterable[RequestT],
) -> AsyncGenerator[RequestT, None]:
    if isinstance(requests, AsyncGenerator):
        async with aclosing(requests):
            async for request in requests:
                yield request
    elif isinstance(requests, AsyncIterable):
        async for request in requests:
            yield request
    else:
        for request in requests:
            yield request
