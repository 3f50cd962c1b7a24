"""What the demo compares, without its server."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def demo() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples" / "demo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["demo"]


def test_every_question_has_its_right_answer_in_its_document(demo: Any) -> None:
    for asked in [*demo.questions(), *demo.few_shot_questions()]:
        right = asked.options[asked.gold]
        assert all(word in asked.parts[-1] for word in right.split()), asked


def test_few_shot_questions_share_a_header_of_answered_examples(demo: Any) -> None:
    asked = demo.few_shot_questions()
    (header,) = {question.parts[0] for question in asked}
    assert header.count("Answer:") == demo.SHOTS
    assert len({question.parts[1] for question in asked}) > 1
    assert all(question.context.startswith(header) for question in asked)
    assert asked[0].context.endswith(f"Question: {asked[0].text}\nAnswer:")
    # No example is one of the documents that are asked about.
    assert not any(one.parts[0] in header for one in demo.questions())


def passes(demo: Any, *seconds: float) -> list[Any]:
    return [demo.Pass((), (), rounds=1, tokens=1, seconds=one) for one in seconds]


def test_a_figure_is_the_median_of_each_way(demo: Any) -> None:
    figure = demo.figure("seconds", passes(demo, 3, 9, 4), passes(demo, 8, 1, 2))
    assert (figure.stock, figure.ours) == (4, 2)
    assert figure.is_better


def test_equal_is_not_better(demo: Any) -> None:
    better = demo.Figure("tokens", 9000, 3000)
    demo.check([better])
    for ours in (40, 41):
        with pytest.raises(demo.DemoError, match=f"not better in rounds 40 -> {ours}"):
            demo.check([better, demo.Figure("rounds", 40, ours)])


def test_the_likelihood_of_an_option_leaves_the_generated_token_out(demo: Any) -> None:
    rows = {
        "text_offset": [0, 5, 9, 12],
        "token_logprobs": [None, -1.0, -2.0, -50.0],
    }
    assert demo._sum(rows, 5) == -3.0


def test_difference_is_the_largest_of_any_option(demo: Any) -> None:
    one, other = passes(demo, 1, 1)
    one = demo.Pass(((-1.0, -2.0), (-3.0,)), (), 1, 1, 1.0)
    other = demo.Pass(((-1.0, -2.5), (-3.1,)), (), 1, 1, 1.0)
    assert demo.difference(one, other) == 0.5


def engine(waiting: Iterator[int]) -> httpx.AsyncClient:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/v1/radixflow/stats"
        return httpx.Response(200, json={"gauges": {"waiting": next(waiting)}})

    return httpx.AsyncClient(
        base_url="http://engine", transport=httpx.MockTransport(answer)
    )


def test_a_backlog_is_complete_when_the_queue_no_longer_grows(demo: Any) -> None:
    async def wait() -> list[int]:
        waiting = iter([0, 0, 3, 3, 8, *[8] * demo.STEADY_POLLS, 9])
        async with engine(waiting) as http:
            await demo.until_queued(http, 60)
        return list(waiting)

    assert anyio.run(wait) == [9]


def test_a_backlog_that_never_comes_is_an_error(demo: Any) -> None:
    async def wait() -> None:
        async with engine(iter(lambda: 0, 1)) as http:
            await demo.until_queued(http, 0.2)

    with pytest.raises(demo.DemoError, match=r"not complete in 0\.2 s: 0 waited"):
        anyio.run(wait)
