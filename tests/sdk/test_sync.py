"""`RadixFlow`: the same client, without an event loop."""

import gc
import inspect
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator

import anyio
import pytest
import trio

from radixflow_sdk import (
    BranchError,
    ClientClosedError,
    InvalidInputError,
    PartialGroupError,
    RadixFlow,
    RadixFlowClient,
    ScoreRequest,
)
from radixflow_sdk._messages import BranchEvent, GroupRequest
from radixflow_sdk.testing import FakeTransport


def test_score_and_stream() -> None:
    fake = FakeTransport({"Oslo": -0.1})
    with RadixFlow(transport=fake) as client:
        result = client.score_candidates("d", ["Rome", "Oslo"], question="Where?")
        texts = [
            candidate.text for candidate in client.stream_candidates("d", ["a", "b"])
        ]
    assert result.best.text == "Oslo"
    assert texts == ["a", "b"]
    assert fake.closed


def test_leaving_a_stream_early() -> None:
    with RadixFlow(transport=FakeTransport()) as client:
        stream = client.stream_candidates("d", ["a", "b"])
        assert next(stream).text == "a"
        stream.close()
        assert client.score_candidates("d", ["a"]).best.text == "a"


def test_a_stream_that_outlives_its_client() -> None:
    client = RadixFlow(transport=FakeTransport())
    stream = client.stream_candidates("d", ["a", "b"])
    assert next(stream).text == "a"
    client.close()
    with pytest.raises(ClientClosedError):
        next(stream)


def test_errors_come_through() -> None:
    with RadixFlow(transport=FakeTransport({"b": BranchError("x")})) as client:
        with pytest.raises(InvalidInputError):
            client.score_candidates("d", [])
        with pytest.raises(InvalidInputError):
            client.stream_candidates("d", [])
        with pytest.raises(PartialGroupError):
            client.score_candidates("d", ["a", "b"])


def test_closed() -> None:
    client = RadixFlow("http://host", api_key="secret")
    assert repr(client) == "<RadixFlow http://host model=None>"
    client.close()
    client.close()
    with pytest.raises(ClientClosedError):
        client.score_candidates("d", ["a"])
    with pytest.raises(ClientClosedError), client:
        pass


def test_one_that_is_left_open_does_not_keep_python_from_ending() -> None:
    script = (
        "from radixflow_sdk import RadixFlow\n"
        "from radixflow_sdk.testing import FakeTransport\n"
        "client = RadixFlow(transport=FakeTransport({'Oslo': -0.1}))\n"
        "view = client.with_options(timeout=5)\n"
        "print(view.score_candidates('d', ['Rome', 'Oslo']).best.text)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "Oslo\n", "")


def test_one_that_is_dropped_ends_its_thread() -> None:
    fake = FakeTransport()
    client = RadixFlow(transport=fake)
    client.score_candidates("d", ["a"])
    del client
    gc.collect()
    assert fake.closed
    assert not [t for t in threading.enumerate() if t.name == "radixflow"]


def test_bad_settings_start_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(InvalidInputError):
        RadixFlow("nowhere")
    assert threading.active_count() == before


def test_threads_share_one() -> None:
    results: list[str | None] = []
    with RadixFlow(transport=FakeTransport({"b": -0.1})) as client:

        def work() -> None:
            results.append(client.score_candidates("d", ["a", "b"]).best.text)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == ["b"] * 8


class Endless(FakeTransport):
    """Answers nothing; presses Ctrl-C once it is asked, and notes who left."""

    def __init__(self) -> None:
        super().__init__()
        self.left = threading.Event()

    async def stream(self, request: GroupRequest) -> AsyncGenerator[BranchEvent, None]:
        main = threading.main_thread().ident
        assert main is not None
        await anyio.sleep(0.1)  # it waits for an outcome
        signal.pthread_kill(main, signal.SIGINT)
        try:
            await anyio.sleep_forever()
        finally:
            self.left.set()
        yield  # type: ignore[misc]


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's own handler: a shell's background job begins without it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("how", ["run", "score_many", "stream_candidates"])
def test_an_interrupted_call_leaves_the_server(how: str) -> None:
    def ask() -> None:
        if how == "run":
            client.run(ScoreRequest(document="d", options=["a"]))
        elif how == "score_many":
            list(client.score_many([ScoreRequest(document="d", options=["a"])]))
        else:
            list(client.stream_candidates("d", ["a"]))

    fake = Endless()
    with RadixFlow(transport=fake) as client:
        with pytest.raises(KeyboardInterrupt):
            ask()
        assert fake.left.wait(5)


def test_it_works_inside_a_trio_task() -> None:
    async def main() -> None:
        with RadixFlow(transport=FakeTransport({"b": -0.1})) as client:  # asks a model
            texts = [one.text for one in client.stream_candidates("d", ["a", "b"])]
            request = ScoreRequest(document="d", options=["a", "b"])
            [outcome] = client.score_many([request])
        assert sorted(map(str, texts)) == ["a", "b"]
        assert outcome.unwrap().best.text == "b"

    trio.run(main)


def names() -> list[str]:
    public = [name for name in vars(RadixFlowClient) if not name.startswith("_")]
    return ["__init__", *(name for name in public if name != "aclose")]


@pytest.mark.parametrize("name", names())
def test_there_is_no_twin(name: str) -> None:
    ours, theirs = getattr(RadixFlow, name), getattr(RadixFlowClient, name)
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert ours.__doc__ == theirs.__doc__
