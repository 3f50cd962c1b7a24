"""The wire's request: what is read, and how each bad input is told."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server_ext.api.protocol import BranchesRequest, RequestRefused, parse_request

CONTRACT = Path(__file__).parents[1] / "contract"
TEXT = {"text": "Anna lives in Oslo."}
MESSAGES = {"messages": [{"role": "user", "content": "Where?"}]}


def read(**fields: Any) -> BranchesRequest:
    body = {"document": TEXT, "branches": [{"text": " Oslo"}]} | fields
    return parse_request(json.dumps(body).encode())


def refused(body: bytes) -> RequestRefused:
    with pytest.raises(RequestRefused) as caught:
        parse_request(body)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert len(message) < 300
    json.dumps(caught.value.body())
    return caught.value


@pytest.mark.parametrize("path", sorted(CONTRACT.glob("request_*.json")), ids=str)
def test_the_contract_is_read(path: Path) -> None:
    golden = json.loads(path.read_text("utf-8"))
    request = parse_request(path.read_bytes())
    written = request.model_dump(exclude_unset=True, exclude_none=True)
    golden["document"] = {k: v for k, v in golden["document"].items() if v is not None}
    assert written == {k: v for k, v in golden.items() if v is not None}


def test_what_is_left_out() -> None:
    request = read()
    assert request.scoring == "likelihood"
    assert (request.model, request.question, request.labels) == (None, None, None)
    assert (request.group_id, request.cache_salt, request.priority) == (None, None, 0)


def test_the_largest_that_is_taken() -> None:
    branches = [{"token_ids": [2**31 - 1]}] * 4096
    assert len(read(branches=branches).branches) == 4096
    read(group_id="A-Za-z0-9._:-" * 9, cache_salt="é" * 256, priority=-(2**31))
    read(scoring="label", labels=["a"] * 63 + [5])
    read(document={"text": ""}, question="q")
    read(document={"text": "é" * 62, "boundaries": [*range(1, 63)]})
    read(document={"token_ids": [7, 7], "boundaries": [1, 2]})
    read(document={"text": "a", "boundaries": []})
    read(document=MESSAGES, question="")


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "no document": ({"document": None}, "document"),
    "document is a text": ({"document": "Anna"}, "document"),
    "document of no form": ({"document": {}}, "document"),
    "document of two forms": ({"document": TEXT | MESSAGES}, "document"),
    "all empty": ({"document": {"text": ""}}, "document"),
    "question empty too": ({"document": {"text": ""}, "question": ""}, "document"),
    "no ids": ({"document": {"token_ids": []}}, "document.token_ids"),
    "no messages": ({"document": {"messages": []}}, "document.messages"),
    "half a message": (
        {"document": {"messages": [{"role": "user"}]}},
        "document.messages.0.content",
    ),
    "question and messages": ({"document": MESSAGES, "question": "q"}, "question"),
    "boundary 0": ({"document": TEXT | {"boundaries": [0]}}, "document.boundaries.0"),
    "boundary is true": (
        {"document": TEXT | {"boundaries": [1, True]}},
        "document.boundaries.1",
    ),
    "boundary is a float": (
        {"document": TEXT | {"boundaries": [1.0]}},
        "document.boundaries.0",
    ),
    "boundary beyond the text": (
        {"document": TEXT | {"boundaries": [1, 20]}},
        "document.boundaries",
    ),
    "boundary in bytes": (
        {"document": {"text": "é", "boundaries": [2]}},
        "document.boundaries",
    ),
    "boundary beyond the ids": (
        {"document": {"token_ids": [7], "boundaries": [2]}},
        "document.boundaries",
    ),
    "boundaries twice": (
        {"document": TEXT | {"boundaries": [2, 2]}},
        "document.boundaries",
    ),
    "boundaries descend": (
        {"document": TEXT | {"boundaries": [3, 2]}},
        "document.boundaries",
    ),
    "63 boundaries": (
        {"document": {"text": "a" * 99, "boundaries": [*range(1, 64)]}},
        "document.boundaries",
    ),
    "boundaries are a number": (
        {"document": TEXT | {"boundaries": 3}},
        "document.boundaries",
    ),
    "boundaries of messages": (
        {"document": MESSAGES | {"boundaries": [1]}},
        "document.boundaries",
    ),
    "question is a list": ({"question": ["q"]}, "question"),
    "no branches": ({"branches": []}, "branches"),
    "4,097 branches": ({"branches": [{"text": "a"}] * 4097}, "branches"),
    "branch is a text": ({"branches": [" Oslo"]}, "branches.0"),
    "branch is empty": ({"branches": [{"text": "a"}, {"text": ""}]}, "branches.1.text"),
    "branch without ids": ({"branches": [{"token_ids": []}]}, "branches.0.token_ids"),
    "branch of no form": ({"branches": [{}]}, "branches.0"),
    "branch of two forms": (
        {"branches": [{"text": "a", "token_ids": [1]}]},
        "branches.0",
    ),
    "id is true": ({"branches": [{"token_ids": [True]}]}, "branches.0.token_ids.0"),
    "id is a float": ({"branches": [{"token_ids": [1.0]}]}, "branches.0.token_ids.0"),
    "id is a text": ({"branches": [{"token_ids": ["1"]}]}, "branches.0.token_ids.0"),
    "scoring": ({"scoring": "perplexity"}, "scoring"),
    "labels wanted": ({"scoring": "label"}, "labels"),
    "labels unwanted": ({"labels": [" yes"]}, "labels"),
    "no labels": ({"scoring": "label", "labels": []}, "labels"),
    "65 labels": ({"scoring": "label", "labels": ["a"] * 65}, "labels"),
    "label is empty": ({"scoring": "label", "labels": ["a", ""]}, "labels.1"),
    "label is true": ({"scoring": "label", "labels": [True]}, "labels.0"),
    "group id": ({"group_id": "a b"}, "group_id"),
    "group id with a line break": ({"group_id": "a\n"}, "group_id"),
    "long group id": ({"group_id": "a" * 129}, "group_id"),
    "empty salt": ({"cache_salt": ""}, "cache_salt"),
    "long salt": ({"cache_salt": "a" * 257}, "cache_salt"),
    "priority is a text": ({"priority": "1"}, "priority"),
    "priority beyond 32 bits": ({"priority": 2**31}, "priority"),
    "model is a number": ({"model": 3}, "model"),
    "unknown field": ({"top_k": 3}, "top_k"),
    "unknown field, no name": ({"top-k": 3}, "top-k"),
    "unknown field below": ({"document": TEXT | {"x-y": 1}}, "document.x-y"),
}
OUT_OF_RANGE: dict[str, tuple[dict[str, Any], str]] = {
    "negative id": ({"branches": [{"token_ids": [1, -1]}]}, "branches.0.token_ids.1"),
    "id 2**31": ({"branches": [{"token_ids": [2**31]}]}, "branches.0.token_ids.0"),
    "id 2**63": ({"document": {"token_ids": [2**63]}}, "document.token_ids.0"),
    "negative label": ({"scoring": "label", "labels": [-1]}, "labels.0"),
    "label 2**63": ({"scoring": "label", "labels": [1, 2**63]}, "labels.1"),
}


@pytest.mark.parametrize(
    ("fields", "field", "code"),
    [
        *((*case, "invalid_request") for case in INVALID.values()),
        *((*case, "token_out_of_range") for case in OUT_OF_RANGE.values()),
    ],
    ids=[*INVALID, *OUT_OF_RANGE],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], field: str, code: str) -> None:
    body = {"document": TEXT, "branches": [{"text": " Oslo"}]} | fields
    refusal = refused(json.dumps(body).encode())
    assert (refusal.status, refusal.code, refusal.field) == (422, code, field)
    assert str(refusal).startswith(f"{field}: ")


MANY = 200_000
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "ids of texts": ({"document": {"token_ids": [""] * MANY}}, "document.token_ids.0"),
    "ids of a branch": (
        {"branches": [{"token_ids": [""] * MANY}]},
        "branches.0.token_ids.0",
    ),
    "unknown fields": ({f"k{n}": 1 for n in range(MANY)}, "k0"),
    "unknown fields below": (
        {"document": TEXT | {f"k{n}": 1 for n in range(MANY)}},
        "document.k0",
    ),
    "branches of nothing": ({"branches": [{}] * MANY}, "branches.0"),
    "branches are numbers": ({"branches": [7] * MANY}, "branches.0"),
    "messages of nothing": (
        {"document": {"messages": [{}] * MANY}},
        "document.messages.0.role",
    ),
    "boundaries are texts": (
        {"document": TEXT | {"boundaries": [""] * MANY}},
        "document.boundaries.0",
    ),
    "labels are true": ({"scoring": "label", "labels": [True] * MANY}, "labels.0"),
}


@pytest.mark.parametrize(("fields", "field"), HOSTILE.values(), ids=HOSTILE)
def test_the_first_of_many_errors_is_the_only_one_made(
    fields: dict[str, Any], field: str
) -> None:
    """An error of pydantic's for each of them costs a KiB and more."""
    body = json.dumps({"document": TEXT, "branches": [{"text": " a"}]} | fields)
    data = body.encode()
    tracemalloc.start()
    try:
        json.loads(data)
        _, parsed = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        refusal = refused(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refusal.field == field
    assert peak < 1.5 * parsed + 2**20


@pytest.mark.parametrize(
    "fields",
    [
        {"k" * 2**20: 1},
        {"document": TEXT | {"k" * 2**20: 1}},
        {"document": TEXT | {"k" * 2**20: "\0"}},
        {"document": {"k" * 2**20: "\0"}},
        {"priority": "9" * 2**20},
        {"scoring": "x" * 2**20},
        {"group_id": "x" * 2**20},
    ],
    ids=["key", "below", "NUL below", "NUL", "value", "choice", "pattern"],
)
def test_an_error_does_not_repeat_long_keys_and_values(fields: dict[str, Any]) -> None:
    body = {"document": TEXT, "branches": [{"text": " a"}]} | fields
    refusal = refused(json.dumps(body).encode())
    assert len(json.dumps(refusal.body())) < 1000


def test_ids_that_cannot_fit_are_refused_before_each_is_checked() -> None:
    for fields, field in (
        ({"document": {"token_ids": [""] * 101}}, "document"),
        ({"branches": [{"text": "a"}, {"token_ids": [""] * 101}]}, "branches.1"),
    ):
        body = {"document": TEXT, "branches": [{"text": " a"}]} | fields
        with pytest.raises(RequestRefused, match="101 tokens") as caught:
            parse_request(json.dumps(body).encode(), limit=100)
        assert (caught.value.code, caught.value.field) == ("context_too_long", field)


def test_a_missing_field_is_named() -> None:
    assert refused(b'{"branches": [{"text": "a"}]}').field == "document"
    assert refused(b'{"document": {"text": "a"}}').field == "branches"


UNCLEAN: list[tuple[dict[str, Any], str | None]] = [
    ({"document": {"text": "a\0"}}, "document.text"),
    ({"document": {"text": "\ud800"}}, "document.text"),
    (
        {"document": {"messages": [{"role": "user", "content": "\udfff"}]}},
        "document.messages.0.content",
    ),
    ({"question": "a\0b"}, "question"),
    ({"branches": [{"text": "a"}, {"text": "b\ud8ff"}]}, "branches.1.text"),
    ({"labels": ["a", "\0"], "scoring": "label"}, "labels.1"),
    ({"\ud800": 1}, None),
    ({"document": {"\udc00": 1}}, "document"),
]


@pytest.mark.parametrize(("fields", "field"), UNCLEAN, ids=range(len(UNCLEAN)))
def test_nul_and_lone_surrogates(fields: dict[str, Any], field: str | None) -> None:
    body = {"document": TEXT, "branches": [{"text": " Oslo"}]} | fields
    refusal = refused(json.dumps(body).encode())
    assert (refusal.status, refusal.code) == (400, "invalid_json")
    assert refusal.field == field


@given(
    text=st.text(st.characters() | st.sampled_from("\0\ud800\udfff\ud7ff\ue000")),
    escaped=st.booleans(),
    encoding=st.sampled_from(["utf-8", "utf-16", "utf-32"]),
)
def test_no_spelling_hides_them(text: str, escaped: bool, encoding: str) -> None:
    fields = {"document": TEXT, "branches": [{"text": f"x{text}"}]}
    spelled = json.dumps(fields, ensure_ascii=escaped)
    body = spelled.encode(encoding, "surrogatepass")
    # What a reader makes of it: two escaped halves are one character.
    there = json.loads(body)["branches"][0]["text"]
    if any(sign == "\0" or "\ud800" <= sign <= "\udfff" for sign in there):
        assert refused(body).field == "branches.0.text"
    else:
        assert parse_request(body).branches[0].text == there


def test_a_pair_of_surrogates_is_a_character() -> None:
    body = json.dumps({"document": {"text": "😀"}, "branches": [{"text": "🎉"}]})
    assert "\\ud83d" in body
    assert parse_request(body.encode()).document.text == "😀"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe\xfd",
        b'{"document": "\xed\xa0\x80"}',
        b"[" * 100_000,
        b'{"priority": ' + b"9" * 5000 + b"}",
    ],
    ids=["empty", "cut", "no text", "not UTF-8", "deep", "long number"],
)
def test_not_json(body: bytes) -> None:
    refusal = refused(body)
    assert (refusal.status, refusal.code) == (400, "invalid_json")


@pytest.mark.parametrize("body", [b"[]", b"null", b'"x"', b"3", b"NaN"])
def test_json_that_is_no_object(body: bytes) -> None:
    refusal = refused(body)
    assert (refusal.status, refusal.code) == (422, "invalid_request")
    assert str(refusal).startswith("body: ")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["text", "token_ids", "messages", "role", "content"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys([*BranchesRequest.model_fields, "x"], _json),
    )
)
def test_any_json_is_read_or_refused(body: dict[str, Any]) -> None:
    try:
        parse_request(json.dumps(body).encode())
    except RequestRefused as refusal:
        json.dumps(refusal.body(), ensure_ascii=False).encode()
