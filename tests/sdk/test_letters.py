"""Options behind letters: every rotation once, and the mean over them."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from radixflow_sdk import InvalidInputError, RadixFlow, RadixFlowClient
from radixflow_sdk._letters import listing, read_orders
from radixflow_sdk.testing import FakeServer
from tests.sdk.stock import StockServer
from tests.sdk.wire import client

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core):ResourceWarning"),
]
OPTIONS = ["Oslo", "Rome", "Kelso"]


def test_every_option_stands_once_at_every_place() -> None:
    orders = read_orders(OPTIONS, rotate=True)
    assert orders == ((0, 1, 2), (1, 2, 0), (2, 0, 1))
    assert read_orders(OPTIONS, rotate=False) == ((0, 1, 2),)
    assert listing(OPTIONS, orders[1]) == "\nA. Rome\nB. Kelso\nC. Oslo\nAnswer:"


async def test_the_mean_over_the_orders() -> None:
    server = StockServer()
    async with client(server, route="trie") as radixflow:
        result = await radixflow.score_letters("Anna.", OPTIONS, question="Where?")
    letters = [server.encode(f" {letter}")[0] for letter in "ABC"]
    wanted = [[0.0] * 3 for _ in OPTIONS]
    for number, order in enumerate(read_orders(OPTIONS, rotate=True)):
        text = f"Anna.\n\nQuestion: Where?{listing(OPTIONS, order)}"
        row = server.row(server.encode(text))
        shares = [math.exp(row[letter]) for letter in letters]
        for index, share in zip(order, shares, strict=True):
            wanted[index][number] = share / sum(shares)
    for choice in result.choices:
        assert choice.by_order == pytest.approx(wanted[choice.index])
        assert choice.probability == pytest.approx(sum(wanted[choice.index]) / 3)
    assert math.fsum(c.probability for c in result.choices) == pytest.approx(1)
    assert [c.probability for c in result.choices] == sorted(
        (c.probability for c in result.choices), reverse=True
    )
    assert result.best.text == OPTIONS[result.best.index]
    assert 0 < result.label_mass < 1
    assert len(result.group.candidates) == 3


async def test_ties_go_by_the_order_given() -> None:
    server = FakeServer(default=math.log(0.5))
    async with server.listen() as url, RadixFlowClient(url) as radixflow:
        result = await radixflow.score_letters("d", OPTIONS[:2], rotate=False)
    assert [(c.index, c.tied) for c in result.choices] == [(0, True), (1, True)]
    [request] = server.requests
    assert request.body["labels"] == [" A", " B"]
    assert request.body["branches"] == [{"text": listing(OPTIONS[:2], (0, 1))}]


def test_the_blocking_client_has_it_too() -> None:
    server = FakeServer()
    with server.listen_in_thread() as url, RadixFlow(url) as radixflow:
        assert len(radixflow.score_letters("d", OPTIONS).group.candidates) == 3


@pytest.mark.parametrize(
    "options", [["a"], [], "ab", ["a", "a"], ["a", ""], ["a", 1], ["x"] * 27]
)
async def test_options_without_letters_are_refused(options: Sequence[Any]) -> None:
    async with RadixFlowClient("http://127.0.0.1:9") as radixflow:
        with pytest.raises(InvalidInputError) as caught:
            await radixflow.score_letters("d", options)
    assert caught.value.field == "options"
