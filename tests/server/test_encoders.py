"""Requests are encoded fairly, and no longer than their clients are there."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("vllm")

from server_ext.api import encoders as encoders_module
from server_ext.api.encoders import SHORT_CHARACTERS, Encoders
from server_ext.api.protocol import BranchesRequest, RequestRefused
from server_ext.api.tokens import GroupPrompts
from tests.server.fake_engine import Client, FakeEngine, Letters, group, serve, until

pytestmark = pytest.mark.asyncio
MANY = 2000


class Stepping(Letters):
    """Calls back for every text; a copy of it calls the same."""

    def __init__(self, called: Callable[[str], None]) -> None:
        self._called = called

    def __call__(self, text: str, **options: Any) -> dict[str, Any]:
        self._called(text)
        return super().__call__(text, **options)

    def __deepcopy__(self, memo: Any) -> "Stepping":
        return Stepping(self._called)


def request(document: str, branches: int) -> BranchesRequest:
    body = group(*["x"] * branches, document={"text": document})
    return BranchesRequest.model_validate(body)


async def encode(encoders: Encoders, asked: BranchesRequest) -> GroupPrompts:
    return await encoders.prompts(asked, vocabulary=0x3000, limit=10**6)


async def test_a_short_request_does_not_wait_for_a_long_context() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def called(text: str) -> None:
        if len(text) > SHORT_CHARACTERS:
            begun.set()
            assert go_on.wait(20)  # for the short one's end

    encoders = Encoders(Stepping(called))
    long = asyncio.create_task(encode(encoders, request("l" * 40_000, 2)))
    await until(begun.is_set)
    short = await encode(encoders, request("short", 2))
    assert short.prompt(0) == [ord(letter) for letter in "shortx"]
    assert not long.done()
    go_on.set()
    assert (await long).document_tokens == 40_000


async def test_long_requests_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of many branches does not end before one of few begins."""
    monkeypatch.setattr(encoders_module, "SLICE_SECONDS", 0.0005)
    order: list[str] = []
    encoders = Encoders(Stepping(lambda text: order.append(text[0])))
    many = asyncio.create_task(encode(encoders, request("m" * 40_000, MANY)))
    await until(lambda: order)
    few = asyncio.create_task(encode(encoders, request("f" * 40_000, 2)))
    await asyncio.gather(many, few)
    last = len(order) - 1 - order[::-1].index("f")
    assert "m" in order[last:]


async def test_nothing_is_encoded_for_a_client_that_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoders_module, "SLICE_SECONDS", 0.0)
    encoded: list[str] = []
    first, go_on = threading.Event(), threading.Event()

    def called(text: str) -> None:
        encoded.append(text)
        first.set()
        assert go_on.wait(20)

    engine = FakeEngine()
    app = serve(engine, encoders=Encoders(Stepping(called)))
    client = Client(app, body=group(*["x"] * MANY))
    await until(first.is_set)
    client.go_away()
    for _ in range(10):  # its end is read
        await asyncio.sleep(0)
    go_on.set()
    await client()
    assert len(encoded) < 5
    assert not engine.asked
    assert (await Client(app, body=group())()).events[-1]["completed"] == 2


async def test_a_refusal_comes_out_of_its_thread() -> None:
    encoders = Encoders(Letters())
    with pytest.raises(RequestRefused, match="model takes 4 "):
        await encoders.prompts(request("a" * 9, 1), vocabulary=0x3000, limit=4)


async def test_a_copy_of_the_tokenizer_is_made_for_the_first_long_request() -> None:
    copies: list[int] = []

    class Copied(Letters):
        def __deepcopy__(self, memo: Any) -> Letters:
            copies.append(1)
            return Letters()

    encoders = Encoders(Copied())
    await encode(encoders, request("short", 2))
    assert copies == []
    await encode(encoders, request("l" * 40_000, 2))
    await encode(encoders, request("l" * 40_000, 2))
    assert copies == [1]
