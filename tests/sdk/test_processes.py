"""Clients and processes: forks, pickles, calls that another thread ends."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from concurrent.futures import CancelledError

import anyio
import pytest

from radixflow_sdk import ClientClosedError, RadixFlow, RadixFlowClient
from radixflow_sdk._messages import BranchEvent, GroupRequest
from radixflow_sdk.testing import FakeTransport

BEGIN = """
import gc, multiprocessing, os, sys, warnings
warnings.filterwarnings("ignore", category=DeprecationWarning)
from radixflow_sdk import ClientClosedError, RadixFlow
from radixflow_sdk.testing import FakeTransport

client = None

def score(new):
    return new.score_candidates("d", ["a", "b"]).best.text

def in_child():
    global client
    if client is not None:
        try:
            score(client)
        except ClientClosedError as error:
            assert "one in each process" in str(error), error
        else:
            raise AssertionError("the child used its parent's client")
        client.close()
        client = None
        gc.collect()
    with RadixFlow(transport=FakeTransport({"b": -0.1})) as own:
        assert score(own) == "b"
"""
MAIN = """
if __name__ == "__main__":
    client = RadixFlow(transport=FakeTransport({"b": -0.1}))
    stream = client.stream_candidates("d", ["a", "b"])
    next(stream)
    assert score(client) == "b"
"""
PROCESSES = """
    context = multiprocessing.get_context(sys.argv[1])
    child = context.Process(target=in_child)
    child.start()
    child.join()
    assert child.exitcode == 0, child.exitcode
    assert score(client) == "b"
    assert next(stream).text == "b"
    print("ended")
"""
WORKERS = """
    # Workers that are forked once the app is there, as pre-fork web servers do; they
    # leave the client alone and end with Python's own exit.
    children = []
    for number in range(3):
        child = os.fork()
        if not child:
            if number == 1:
                del stream, client
                gc.collect()
            elif number == 2:
                stream.close()
            sys.exit(0)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    assert score(client) == "b"
    print("ended")
"""
POOL = """
    from concurrent.futures import ProcessPoolExecutor
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        for done in [pool.submit(in_child) for _ in range(4)]:
            done.result()
    assert score(client) == "b"
    print("ended")
"""


@pytest.mark.parametrize(
    ("end", "argument"),
    [
        (PROCESSES, "fork"),
        (PROCESSES, "spawn"),
        (PROCESSES, "forkserver"),
        (WORKERS, ""),
        (POOL, ""),
    ],
    ids=["fork", "spawn", "forkserver", "pre-fork", "pool"],
)
def test_a_client_belongs_to_its_process(
    end: str, argument: str, tmp_path: object
) -> None:
    script = f"{tmp_path}/script.py"
    with open(script, "w", encoding="utf-8") as file:
        file.write(BEGIN + MAIN + end)
    ran = subprocess.run(
        [sys.executable, script, argument],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ended\n", "")


@pytest.mark.parametrize("make", [RadixFlow, RadixFlowClient])
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_client_is_not_copied(make: type, duplicate: object) -> None:
    client = make(transport=FakeTransport())
    with pytest.raises(TypeError, match="one in each process"):
        duplicate(client)  # type: ignore[operator]
    if isinstance(client, RadixFlow):
        client.close()


class Silent(FakeTransport):
    """Answers nothing, and notes that it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    async def stream(self, request: GroupRequest) -> AsyncGenerator[BranchEvent, None]:
        self.asked.set()
        await anyio.sleep_forever()
        yield  # type: ignore[misc]


@pytest.mark.parametrize("how", ["score_candidates", "stream_candidates"])
def test_a_call_that_another_thread_ends_says_so(how: str) -> None:
    silent = Silent()
    client = RadixFlow(transport=silent)
    ended: list[BaseException] = []

    def ask() -> None:
        try:
            if how == "score_candidates":
                client.score_candidates("d", ["a"])
            else:
                list(client.stream_candidates("d", ["a"]))
        except (Exception, CancelledError) as error:  # noqa: BLE001
            ended.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert silent.asked.wait(20)
    client.close()
    thread.join(20)
    assert [type(error) for error in ended] == [ClientClosedError]
