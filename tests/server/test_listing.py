"""Long lists of the engine: small pages in, one JSON answer out."""

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("vllm")

from server_ext.policy import arrivals
from server_ext.policy.arrivals import Arrival, Arrivals
from server_ext.policy.counters import Round
from tests.server.fake_engine import Client, FakeEngine, serve, until

pytestmark = pytest.mark.asyncio


def arrival(number: int, keys: int = 1) -> Arrival:
    return Arrival(f"r{number}", number // 10, 1.0, 20, 1, True, b"k" * 8 * keys, None)


def a_round(number: int, rows: int = 3) -> Round:
    scheduled = {f"r{row}": 16 for row in range(rows)}
    return Round(number, number * 0.1, 200, scheduled, ("b",), 1, 0, 0)


class Kept:
    """An engine with arrivals, that notes how it is asked."""

    def __init__(self, arrivals: Arrivals) -> None:
        self.arrivals = arrivals
        self.starts: list[int] = []
        self.inside = self.most_inside = 0

    async def call_utility_async(self, method: str, after: int, start: int) -> Any:
        assert method == "radixflow_arrivals"
        self.starts.append(start)
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        await asyncio.sleep(0)
        self.inside -= 1
        page, following = self.arrivals.page(after, start)
        return {
            "policy": {"name": "radix"},
            "dropped": self.arrivals.dropped,
            "arrivals": [arrival.as_dict() for arrival in page],
            "next": following,
            "end": self.arrivals.end,
        }


async def get(engine: Any, path: str) -> Client:
    fake = FakeEngine()
    fake.engine_core = engine
    return await Client(serve(fake), "GET", f"/v1/radixflow/{path}")()


def kept(number: int, keys: int = 1) -> Kept:
    arrivals = Arrivals()
    for at in range(number):
        arrivals.add(arrival(at, keys))
    return Kept(arrivals)


@pytest.mark.parametrize("number", [0, 1, 131, 132, 1000, 5000])
async def test_arrivals_come_in_small_pages_and_go_as_one_list(number: int) -> None:
    engine = kept(number)
    answer = json.loads((await get(engine, "arrivals")).body)
    let_go = max(number - arrivals.KEPT, 0)
    assert [one["name"] for one in answer["arrivals"]] == [
        f"r{at}" for at in range(let_go, number)
    ]
    assert answer["v"] == 1
    assert answer["policy"] == {"name": "radix"}
    assert answer["dropped"] == let_go
    assert len(engine.starts) >= min(number, arrivals.KEPT) / 132
    assert "next" not in answer


async def test_a_page_is_bounded_in_bytes_too() -> None:
    engine = kept(40, keys=2**13)
    answer = json.loads((await get(engine, "arrivals")).body)
    assert len(answer["arrivals"]) == 40
    assert len(engine.starts) == 20
    page, following = engine.arrivals.page(0, 0)
    assert (len(page), following) == (2, 2)


async def test_arrivals_after_a_round() -> None:
    engine = kept(300)
    answer = json.loads((await get(engine, "arrivals?after=20")).body)
    assert [one["name"] for one in answer["arrivals"]] == [
        f"r{at}" for at in range(200, 300)
    ]


async def test_arrivals_that_are_let_go_while_they_are_read_are_counted() -> None:
    engine = kept(arrivals.KEPT)
    original = engine.call_utility_async

    async def call(method: str, after: int, start: int) -> Any:
        page = await original(method, after, start)
        for at in range(500):
            engine.arrivals.add(arrival(at))
        return page

    engine.call_utility_async = call  # type: ignore[method-assign]
    answer = json.loads((await get(engine, "arrivals")).body)
    assert answer["dropped"] > 0
    assert len(answer["arrivals"]) + answer["dropped"] >= arrivals.KEPT
    assert len(engine.starts) < 100


async def test_readers_do_not_ask_the_engine_at_once() -> None:
    engine = kept(1000)
    fake = FakeEngine()
    fake.engine_core = engine  # type: ignore[assignment]
    app = serve(fake)
    readers = [Client(app, "GET", "/v1/radixflow/arrivals") for _ in range(5)]
    for reader in readers:
        assert len(json.loads((await reader()).body)["arrivals"]) == 1000
    assert engine.most_inside == 1


async def test_a_reader_that_stops_reading_keeps_nobody_waiting() -> None:
    engine = kept(1000)
    fake = FakeEngine()
    fake.engine_core = engine  # type: ignore[assignment]
    app = serve(fake)
    slow = Client(app, "GET", "/v1/radixflow/arrivals", reading=False)
    await until(lambda: engine.starts)
    quick = await Client(app, "GET", "/v1/radixflow/arrivals")()
    assert len(json.loads(quick.body)["arrivals"]) == 1000
    slow.go_away()
    await slow()


class Rounds:
    """An engine that plans a round whenever it is asked."""

    def __init__(self, planned: int, page: int) -> None:
        self.planned, self.page, self.asked = planned, page, 0

    async def call_utility_async(self, method: str, after: int) -> Any:
        assert method == "radixflow_rounds"
        self.asked += 1
        numbers = range(after + 1, self.planned + 1)[: self.page]
        newest, self.planned = self.planned, self.planned + 10
        rounds = [a_round(number).as_dict() for number in numbers]
        return {"rounds": rounds, "newest": newest}


@pytest.mark.parametrize("planned", [0, 1, 7, 8, 100])
async def test_rounds_end_with_the_newest_at_the_start(planned: int) -> None:
    engine = Rounds(planned, page=8)
    answer = json.loads((await get(engine, "rounds")).body)
    numbers = [one["number"] for one in answer["rounds"]]
    assert numbers[:planned] == list(range(1, planned + 1))
    assert len(numbers) < planned + 8
    assert engine.asked <= planned // 8 + 1


async def test_a_trace_is_sent_in_parts() -> None:
    client = await get(Rounds(400, page=100), "trace")
    events = json.loads(client.body)
    assert len([event for event in events if event["ph"] == "X"]) >= 400 * 4
    assert client.headers["content-type"] == "application/json"


@pytest.mark.parametrize("after", ["-1", "x", "", "1.0", "10" * 20, "²", "9" * 5000])
@pytest.mark.parametrize("path", ["rounds", "arrivals"])
async def test_a_round_that_is_none(path: str, after: str) -> None:
    client = await get(Rounds(3, page=3), f"{path}?after={after}")
    assert (client.status, client.error["code"]) == (422, "invalid_request")
    assert client.error["field"] == "after"
    assert len(client.body) < 500
