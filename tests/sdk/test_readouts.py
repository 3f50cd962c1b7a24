"""One answer, read in every way: normalizers, ranks, masses, and what is not there."""

import math

import pytest

from radixflow_sdk import (
    BranchError,
    InvalidInputError,
    LabelScore,
    PartialGroupError,
    RadixFlowClient,
    ScoredCandidate,
    ScoreRequest,
    TokenScore,
    Usage,
)
from radixflow_sdk._plan import make_plan
from radixflow_sdk._unconditional import Unconditional
from radixflow_sdk.testing import FakeServer, FakeTransport

pytestmark = pytest.mark.anyio

SCORES = {"Oslo": -2.0, "Addis Ababa": -3.0}
OPTIONS = ["Oslo", "Addis Ababa"]


def candidate(
    *tops: bool | None, labels: tuple[LabelScore, ...] | None = None
) -> ScoredCandidate:
    return ScoredCandidate(
        index=0,
        text="x",
        score=-1.0,
        scores={"sum": -1.0},
        tokens=tuple(
            TokenScore(token_id=7, logprob=-1.0, is_top=is_top) for is_top in tops
        ),
        labels=labels,
        usage=Usage(prompt_tokens=2, cached_tokens=0, computed_tokens=2),
        duplicate_of=None,
        request_id="r",
    )


async def test_one_answer_has_every_normalizer() -> None:
    transport = FakeTransport(SCORES)
    async with RadixFlowClient(transport=transport) as client:
        result = await client.score_candidates("d", OPTIONS)
    assert (result.normalize, result.route) == ("sum", "branches")
    assert result.best.text == "Oslo"
    by_length = result.under("char")
    assert by_length.normalize == "char"
    assert by_length.best.text == "Addis Ababa"
    assert by_length.best.score == by_length.best.scores["char"] == -3.0 / 11
    assert math.fsum(c.probability for c in by_length.candidates) == pytest.approx(1)
    assert by_length.under("sum") == result
    assert len(transport.requests) == 1


async def test_a_normalizer_without_numbers_is_refused() -> None:
    async with RadixFlowClient(transport=FakeTransport()) as client:
        result = await client.score_candidates("d", ["Oslo", [7]])
    with pytest.raises(InvalidInputError, match=r"options\[1\] .* sum, mean only"):
        result.under("char")
    with pytest.raises(InvalidInputError, match="'pmi'"):
        result.under("pmi")


async def test_brier() -> None:
    async with RadixFlowClient(transport=FakeTransport(default=-1.0)) as client:
        result = await client.score_candidates("d", ["a", "b", "c", "d"])
    assert [result.brier(gold) for gold in range(4)] == pytest.approx([0.75] * 4)
    with pytest.raises(InvalidInputError, match="gold is 4"):
        result.brier(4)


def test_greedy_is_all_of_the_tokens_or_unknown() -> None:
    assert candidate(True, True).is_greedy is True
    assert candidate(True, False).is_greedy is False
    assert candidate(True, None).is_greedy is None
    assert candidate(True).label_mass is None
    assert candidate(True).top_is_label is None


def test_labels_say_how_much_they_are_worth() -> None:
    yes = LabelScore(label="yes", token_id=7, logprob=math.log(0.5))
    no = LabelScore(label="no", token_id=8, logprob=math.log(0.25))
    both = candidate(True, labels=(yes, no))
    assert both.label_mass == pytest.approx(0.75)
    assert both.top_is_label is True
    assert both.is_greedy is None
    assert candidate(True, labels=(no,)).top_is_label is False


# --- without a document --------------------------------------------------------------


async def test_pmi_subtracts_what_the_option_is_worth_alone() -> None:
    server = FakeServer()
    async with server.listen() as url, RadixFlowClient(url) as client:
        alone = await client.score_candidates("Answer:", OPTIONS)
        given = await client.score_candidates("d", OPTIONS, question="q")
        result = await client.score_candidates(
            "d", OPTIONS, question="q", normalize="pmi", unconditional="Answer:"
        )
        asked = len(server.requests)
        streamed = [
            each
            async for each in client.stream_candidates(
                "d", OPTIONS, question="q", normalize="pmi", unconditional="Answer:"
            )
        ]
    without = {c.text: c.score for c in alone.candidates}
    for each in (*result.under("pmi").candidates, *streamed):
        [sum_] = [c.score for c in given.candidates if c.text == each.text]
        assert each.score == sum_ - without[each.text]
    assert asked == 4
    body = server.requests[2].body
    assert (body["document"], body["question"]) == ({"text": "Answer:"}, None)
    assert body["group_id"].endswith(".unconditional")
    assert len(server.requests) == 5  # the stream asked for nothing twice


async def test_only_new_options_are_asked_for_without_a_document() -> None:
    transport = FakeTransport()
    async with RadixFlowClient(transport=transport) as client:
        view = client.with_options(timeout=5.0)
        await client.score_candidates("d", ["a", "b"], unconditional="A:")
        await view.score_candidates("e", ["b", "c", "c", [7]], unconditional="A:")
        await client.score_candidates("e", ["b"], unconditional=[3])
        await client.score_candidates("e", ["a", "b", "c"], unconditional="A:")
    sent = [(r.document, [b.content for b in r.branches]) for r in transport.requests]
    assert sent == [
        ("A:", [" a", " b"]),
        ("d", [" a", " b"]),
        ("A:", [" c", (7,)]),
        ("e", [" b", " c", (7,)]),
        ((3,), [" b"]),
        ("e", [" b"]),
        ("e", [" a", " b", " c"]),
    ]


async def test_an_option_that_fails_alone_is_named() -> None:
    error = BranchError("as told", code="engine_error")
    transport = FakeTransport({"b": error})
    async with RadixFlowClient(transport=transport) as client:
        with pytest.raises(PartialGroupError, match=r"options\[2\]") as caught:
            await client.score_candidates(
                "d", ["a", "a", "b"], unconditional="A:", partial="return"
            )
    assert [failure.index for failure in caught.value.failures] == [2]
    assert str(caught.value.group_id).endswith(".unconditional")


def test_the_memory_is_bounded() -> None:
    memory = Unconditional(max_sums=2)
    plan = make_plan(ScoreRequest("d", ["a", "b", "c"], unconditional="A:"))
    memory.remember(plan, "m", {0: -1.0, 1: -2.0})
    assert memory.known(plan, "m") == {0: -1.0, 1: -2.0}
    assert memory.known(plan, "other") == {}
    memory.known(make_plan(ScoreRequest("other", ["a"], unconditional="A:")), "m")
    memory.remember(plan, "m", {2: -3.0})
    assert memory.known(plan, "m") == {0: -1.0, 2: -3.0}


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"normalize": "pmi"}, "unconditional"),
        ({"unconditional": ""}, "unconditional"),
        ({"unconditional": []}, "unconditional"),
        ({"unconditional": 7}, "unconditional"),
        ({"unconditional": [-1]}, "unconditional[0]"),
        ({"unconditional": "A:", "scoring": "label"}, "unconditional"),
        ({"normalize": "pmi", "scoring": "label"}, "normalize"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    arguments: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        make_plan(ScoreRequest("d", ["a"], **arguments))  # type: ignore[arg-type]
    assert caught.value.field == field
