"""What apps hand over, and what they take away."""

import array
import json
from collections.abc import Callable
from typing import Any

import pytest

from radixflow_sdk import (
    BranchError,
    GenerationRequest,
    InvalidInputError,
    Outcome,
    RadixFlow,
    ScoreRequest,
    ScoreResult,
    to_frame,
)
from radixflow_sdk._plan import make_plan
from radixflow_sdk._values import as_plain
from radixflow_sdk.testing import FakeTransport

numpy = pytest.importorskip("numpy")
pandas = pytest.importorskip("pandas")
pyarrow = pytest.importorskip("pyarrow")


class Whole:
    """A whole number of somebody's."""

    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize(
    "kind", [numpy.array, pandas.Series, pyarrow.array, iter, tuple]
)
def test_options_of_any_ordered_kind(kind: Callable[[list[str]], Any]) -> None:
    request = ScoreRequest("d", kind(["Oslo", "Rome"]))
    for _ in range(2):  # a generator can be planned again
        assert make_plan(request).options == ("Oslo", "Rome")
    assert list(ScoreRequest("d", {"Oslo": 1, "Rome": 2}.keys()).options) == [
        "Oslo",
        "Rome",
    ]


@pytest.mark.parametrize(
    "ids",
    [
        numpy.array([1, 2, 7]),
        numpy.array([1, 2, 7], dtype=numpy.uint8),
        [numpy.int64(1), 2, Whole()],
        pandas.Series([1, 2, 7]),
        pyarrow.array([1, 2, 7]),
        array.array("q", [1, 2, 7]),
        (number for number in (1, 2, 7)),
    ],
)
def test_token_ids_of_any_kind(ids: Any) -> None:
    request = ScoreRequest(ids, ["a"], labels=None)
    document = make_plan(request).request.document
    assert document == (1, 2, 7)
    assert all(type(token) is int for token in document)
    assert as_plain([[1, 2], [3]]) == [[1, 2], [3]]


def test_rows_of_an_array_are_options() -> None:
    request = ScoreRequest("d", numpy.array([[1, 2], [3, 4]]))
    assert make_plan(request).options == ((1, 2), (3, 4))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"a", "b"}, "options is"),
        (iter({"a", "b"}), "options is"),
        ({"a": 1}, "options is"),
        (numpy.array([1.5, 2.5]), r"options\[0\] is 1.5"),
        (pandas.Series(["a", None]), r"options\[1\] is"),
        ([numpy.array([True, False])], r"options\[0\]\[0\] is True"),
        (numpy.array(7), "options is 7"),
        (numpy.int64(7), "options is 7"),
    ],
)
def test_what_is_ambiguous_is_refused_by_name(options: Any, told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        make_plan(ScoreRequest("d", options))


def test_plain_values_are_kept_as_they_are() -> None:
    for value in ("text", ["a", "b"], (1, 2), [[1], [2]], None, [{"role": "user"}]):
        assert as_plain(value) is value


def test_generation_takes_them_too() -> None:
    request = GenerationRequest("d", iter(["a"]), max_tokens=numpy.int64(3))
    assert (request.branches, request.max_tokens) == (["a"], 3)


# --- results --------------------------------------------------------------------------


def result(**arguments: Any) -> ScoreResult:
    with RadixFlow(transport=FakeTransport({"Oslo": -0.1}), model="m<") as client:
        return client.score_candidates("d", ["Rome", "Oslo", "R" * 50], **arguments)


@pytest.mark.parametrize("scoring", ["likelihood", "label"])
def test_a_result_survives_json(scoring: Any) -> None:
    found = result(scoring=scoring)
    again = ScoreResult.from_dict(json.loads(found.to_json()))
    assert again == found
    assert again.best.scores == found.best.scores
    assert hash(again.candidates) == hash(found.candidates)


def test_failures_survive_json() -> None:
    from dataclasses import replace

    error = BranchError("failed", index=2, code="aborted", retryable=True)
    found = replace(result(), failures=(error,))
    [again] = ScoreResult.from_dict(json.loads(found.to_json())).failures
    assert (str(again), vars(again)) == (str(error), vars(error))
    assert "1 failed" in repr(found)


@pytest.mark.parametrize("values", [{}, {"candidates": 7}, {"candidates": [{}]}, []])
def test_what_is_no_result_is_refused(values: Any) -> None:
    with pytest.raises(InvalidInputError, match="give what to_dict wrote"):
        ScoreResult.from_dict(values)


def test_a_result_shows_its_ranking() -> None:
    found = result()
    best = found.best
    assert repr(found).startswith(
        f"<ScoreResult {best.text!r} {best.probability:.3f}, "
    )
    assert repr(found).endswith("; sum, m<>")
    html = found._repr_html_()
    assert html.count("<tr>") == 4
    assert "m&lt;" in html
    assert f"&#x27;{'R' * 40}...&#x27;" in html


def test_a_frame_has_a_row_for_each_candidate() -> None:
    found = result()
    request = ScoreRequest("d", ["a"])
    failed: Any = Outcome(index=5, request=request, error=BranchError("no"))
    good: Any = Outcome(index=1, request=request, result=found)
    frame = to_frame([found, good, failed])
    assert list(frame["result"]) == [0, 0, 0, 1, 1, 1, 5]
    assert list(frame["rank"][:3]) == [1, 2, 3]
    assert frame["text"][0] == found.best.text
    assert frame["char"][0] == found.best.scores["char"]
    assert frame["error"][6] == "no"
    wrong: Any = [7]
    with pytest.raises(InvalidInputError, match=r"results\[0\] is 7"):
        to_frame(wrong)
