import json
from typing import Any

import pytest

from radixflow_sdk import InvalidResponseError
from radixflow_sdk._messages import BranchResult, GroupCompleted, GroupRequest
from radixflow_sdk._transport._branches import read_event, read_models
from tests.sdk.wire import USAGE, completed, ended, failed, plan, started

REQUEST = plan().request
LABELLED = plan(scoring="label").request
SCORED = [
    {"label": " yes", "token_id": 1, "logprob": -0.1},
    {"label": " no", "token_id": 2, "logprob": -2.4},
]


def line(event: Any) -> bytes:
    return json.dumps(event).encode()


def test_a_result_is_read() -> None:
    event = read_event(line(completed(1, -0.5, 0)), REQUEST)
    assert isinstance(event, BranchResult)
    assert event.index == 1
    assert [token.logprob for token in event.tokens] == [-0.5, 0.0]


def test_labels_are_read_in_the_order_sent() -> None:
    event = read_event(line(completed(0, labels=SCORED)), LABELLED)
    assert isinstance(event, BranchResult)
    assert event.labels is not None
    assert [label.logprob for label in event.labels] == [-0.1, -2.4]


def test_the_wire_counts_what_was_sent() -> None:
    rest = plan(["a", "b", "c"]).request
    rest = GroupRequest(
        **{
            **{name: getattr(rest, name) for name in GroupRequest.__slots__},
            "branches": rest.branches[2:],
        }
    )
    event = read_event(line(completed(0)), rest)
    assert isinstance(event, BranchResult)
    assert event.index == 2


def test_unknown_events_and_fields_are_ignored() -> None:
    assert read_event(b'{"event": "group.progress", "x": NaN}', REQUEST) is None
    assert read_event(line(completed(0, new_field={"a": 1})), REQUEST) is not None


def test_a_servers_load_is_read_where_it_is_told() -> None:
    for load, backlog in ((None, None), ({"requests": 40, "rows": 16}, 2.5)):
        event = read_event(line(ended(load=load)), REQUEST)
        assert isinstance(event, GroupCompleted)
        assert event.backlog == backlog
    assert read_event(line(ended()), REQUEST) == read_event(
        line(ended(load=None)), REQUEST
    )


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), float("-inf"), None, -9999, 0.002, "-1", True]
)
def test_a_wrong_log_probability_is_never_a_number(value: Any) -> None:
    with pytest.raises(InvalidResponseError):
        read_event(line(completed(0, value)), REQUEST)
    labels = [{**SCORED[0], "logprob": value}, SCORED[1]]
    with pytest.raises(InvalidResponseError):
        read_event(line(completed(0, labels=labels)), LABELLED)


def test_rounding_above_zero_passes() -> None:
    assert read_event(line(completed(0, 0.0009)), REQUEST) is not None


@pytest.mark.parametrize(
    "event",
    [
        started(branches=3),
        started(group="other"),
        started(v=2),
        started(document_tokens="8"),
        started(shared_tokens=-1),
        started(model=None),
        completed(2),
        completed(-1),
        completed(True),
        completed(0, token_ids=[1, 2]),
        completed(0, token_ids=[], token_logprobs=[]),
        completed(0, token_ids=None),
        completed(0, usage=None),
        completed(0, usage={**USAGE, "cached_tokens": -1}),
        completed(0, usage={**USAGE, "cached_tokens": 1.5}),
        failed(7, retryable=True),
        {**failed(0, retryable=True), "error": {}},
        {**failed(0, retryable=True), "error": None},
        ended(usage={}),
        ended(completed="2"),
        ended(load={"requests": -1, "rows": 16}),
        ended(load={"requests": 1, "rows": 0}),
        {"event": "branch.completed"},
        {"event": 3},
        {},
        [],
        None,
        "text",
    ],
    ids=lambda event: json.dumps(event)[:60],
)
def test_wrong_messages_are_typed_errors(event: Any) -> None:
    with pytest.raises(InvalidResponseError) as caught:
        read_event(line(event), REQUEST)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "labels",
    [None, [], SCORED[:1], SCORED[::-1], [*SCORED, SCORED[0]]],
    ids=["null", "none", "few", "order", "many"],
)
def test_labels_must_be_those_sent(labels: Any) -> None:
    with pytest.raises(InvalidResponseError):
        read_event(line(completed(0, labels=labels)), LABELLED)


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff\xfe", b"nul", b"[" * 100_000, b'{"event": "a"} x']
)
def test_what_is_not_json_is_said(raw: bytes) -> None:
    with pytest.raises(InvalidResponseError, match="not JSON"):
        read_event(raw, REQUEST)


def test_models() -> None:
    assert read_models(b'{"object": "list", "data": [{"id": "a"}, {"id": "b"}]}') == (
        "a",
        "b",
    )


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"data": []}', b'{"data": [{"id": 1}]}'])
def test_wrong_models(raw: bytes) -> None:
    with pytest.raises(InvalidResponseError):
        read_models(raw)
