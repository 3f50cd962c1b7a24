"""What a group leaves behind: nothing that the garbage collector must come for.

A pass of it stops the event loop for as long as the program has objects, so cycles that
hold a whole group each would be paid by every other group under way.
"""

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from radixflow_sdk import RadixFlowClient, RetryPolicy
from radixflow_sdk.testing import FakeServer, Fault

pytestmark = pytest.mark.anyio
GROUPS = 20


@contextmanager
def cycles() -> Iterator[Counter[str]]:
    """How many objects of each class of ours, or httpx, only the collector found."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        kinds = (type(one) for one in gc.garbage)
        names = (f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
        found.update(n for n in names if n.startswith(("radixflow_sdk", "httpx.")))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def ask(client: RadixFlowClient, groups: int) -> None:
    for number in range(groups):
        await client.score_candidates(f"d{number}", ["a", "b"])


async def test_groups_leave_no_cycles() -> None:
    async with FakeServer().listen() as url, RadixFlowClient(url) as client:
        await ask(client, 1)
        with cycles() as found:
            await ask(client, GROUPS)
    found.pop(
        "radixflow_sdk._dispatch.ScopedTasks", None
    )  # trio holds it: the server's
    assert found == {}


@pytest.mark.parametrize(
    "fault", [Fault(fail=(0,)), Fault(status=503), Fault(cut_after=1)]
)
async def test_a_group_that_was_sent_again_is_kept_by_nothing(fault: Fault) -> None:
    server = FakeServer(faults=[fault] * GROUPS)
    retry = RetryPolicy(attempts=GROUPS + 1, initial=0)
    async with server.listen() as url, RadixFlowClient(url, retry=retry) as client:
        with cycles() as found:
            await client.score_candidates("d", ["a", "b"] * GROUPS)
    assert len(server.requests) > 1
    # An error and the frames that it went through do hold one another.
    for name in ("httpx.Request", "httpx.Response", "radixflow_sdk._messages.Plan"):
        assert found[name] == 0, found
