import contextlib
import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixflow_sdk import InvalidInputError, ScoreRequest, Template
from radixflow_sdk._hints import session_id
from radixflow_sdk._messages import Message
from radixflow_sdk._plan import make_plan, unconditional_plan
from tests.sdk.wire import plan


def test_likelihood_words_are_those_of_the_demo_model() -> None:
    request = plan(["Oslo"], question="Where does Anna live?").request
    assert request.document == "Anna lives in Oslo."
    assert request.question == "\n\nQuestion: Where does Anna live?\nAnswer:"
    assert [branch.content for branch in request.branches] == [" Oslo"]
    assert request.labels is None


def test_label_words_are_those_of_the_demo_model() -> None:
    request = plan(["Oslo"], question="Where?", scoring="label").request
    assert request.question == "\n\nQuestion: Where?"
    assert request.branches[0].content == "\nCandidate: Oslo\nCorrect:"
    assert request.labels == (" yes", " no")


@pytest.mark.parametrize("question", [None, ""])
def test_without_a_question_the_option_follows_the_document(
    question: str | None,
) -> None:
    request = plan(["Oslo"], question=question).request
    assert request.question is None
    assert request.branches[0].content == " Oslo"


def test_chat_gets_the_question_as_its_last_user_message() -> None:
    messages = [
        {"role": "system", "content": "Read."},
        {"role": "user", "content": "D"},
    ]
    request = plan(document=messages, question="Where?").request
    assert request.question is None
    assert request.document == (
        Message(role="system", content="Read."),
        Message(role="user", content="D"),
        Message(role="user", content="Question: Where?"),
    )


def test_token_ids_are_taken_as_they_are() -> None:
    request = plan([[7, 8], "Rome"], document=[1, 2, 3]).request
    assert request.document == (1, 2, 3)
    assert [branch.content for branch in request.branches] == [(7, 8), " Rome"]


@pytest.mark.parametrize("parts", [["a ", "∀b ", "c"], [[1], (2, 3), [4]], ["a"]])
def test_parts_are_joined_as_they_are(parts: list[Any]) -> None:
    request = plan(document=parts).request
    ends = list(itertools.accumulate(map(len, parts)))
    whole: Any = "".join(parts) if isinstance(parts[0], str) else (1, 2, 3, 4)
    assert request.document == whole
    assert list(request.boundaries) == ends[:-1]
    assert ends[-1] == len(whole)


def test_without_parts_there_are_no_boundaries() -> None:
    chat = [{"role": "user", "content": "D"}]
    for document in ("text", [1, 2, 3], chat):
        assert plan(document=document).request.boundaries == ()


def test_the_most_parts_are_accepted() -> None:
    request = plan(document=["x"] * 62).request
    assert request.boundaries == tuple(range(1, 62))


def test_the_group_without_the_document_has_no_parts() -> None:
    made = plan(document=["a", "b"], unconditional="Answer:")
    request = unconditional_plan(made, [0]).request
    assert (request.document, request.boundaries) == ("Answer:", ())


def test_parts_and_their_text_are_one_document_to_a_router() -> None:
    text = session_id(None, "m", "one two")
    assert session_id(None, "m", ["one ", "two"]) == text
    assert session_id(None, "m", ["one", "two"]) != text
    ids = session_id(None, "m", [1, 2, 3])
    assert session_id(None, "m", [[1], (2, 3)]) == ids
    assert session_id(None, "m", (1, 2, 3)) == ids


@given(st.text(alphabet="{}%$\\ 0ab[]", min_size=1))
def test_braces_are_never_interpreted(text: str) -> None:
    request = make_plan(ScoreRequest(text, [text], question=text)).request
    assert request.document == text
    assert request.question == f"\n\nQuestion: {text}\nAnswer:"
    assert request.branches[0].content == f" {text}"


def test_a_template_of_ones_own() -> None:
    words = Template(before_question="<q>", after_question="</q>", before_option="")
    request = plan(["A"], question="?", template=words).request
    assert (request.question, request.branches[0].content) == ("<q>?</q>", "A")


def test_duplicates_are_sent_once() -> None:
    made = plan(["A", "B", "A", [1], (1,)])
    assert [branch.content for branch in made.request.branches] == [" A", " B", (1,)]
    assert made.members == ((0, 2), (1,), (3, 4))


def test_a_group_id_is_made_and_new() -> None:
    ids = {make_plan(ScoreRequest("d", ["a"])).request.group_id for _ in range(3)}
    assert len(ids) == 3


def test_the_largest_group_is_accepted() -> None:
    assert len(plan([str(i) for i in range(4096)]).request.branches) == 4096


BAD: list[tuple[str, dict[str, Any]]] = [
    ("document", {"document": "", "question": ""}),
    ("document", {"document": "", "question": None}),
    ("document", {"document": [], "question": None}),
    ("document", {"document": b"bytes"}),
    ("document", {"document": None}),
    ("document", {"document": {"text": "x"}}),
    ("document", {"document": "a\x00b"}),
    ("document", {"document": "a\ud800b"}),
    ("document[1]", {"document": [1, -1]}),
    ("document[1]", {"document": [1, 2**63]}),
    ("document[1]", {"document": [1, True]}),
    ("document[1]", {"document": [1, 2.0]}),
    ("document[1]", {"document": [1, "two"]}),
    ("document[1]", {"document": [{"role": "user", "content": "x"}, 3]}),
    ("document", {"document": ["x"] * 63}),
    ("document[1]", {"document": ["a", ""]}),
    ("document[0]", {"document": [""]}),
    ("document[1]", {"document": [[1], []]}),
    ("document[1]", {"document": ["a", [1]]}),
    ("document[2]", {"document": [[1], [2], "a"]}),
    ("document[1]", {"document": ["a", 3]}),
    ("document[1]", {"document": ["a", {"role": "user", "content": "x"}]}),
    ("document[1]", {"document": ["a", b"b"]}),
    ("document[1]", {"document": ["a", "\x00"]}),
    ("document[1][0]", {"document": [[1], [-1]]}),
    ("document[0]", {"document": [{"role": "user"}]}),
    ("document[0].content", {"document": [{"role": "user", "content": None}]}),
    ("document[0].role", {"document": [{"role": "", "content": "x"}]}),
    ("options", {"options": []}),
    ("options", {"options": "abc"}),
    ("options", {"options": {"a", "b"}}),
    ("options", {"options": None}),
    ("options", {"options": ["x"] * 4097}),
    ("options[1]", {"options": ["a", ""]}),
    ("options[1]", {"options": ["a", []]}),
    ("options[0]", {"options": [1]}),
    ("options[0]", {"options": [None]}),
    ("options[0]", {"options": ["\udfff"]}),
    ("options[0]", {"options": ["\x00"]}),
    ("options[0][1]", {"options": [[1, -5]]}),
    ("options[0][0]", {"options": [[1.5]]}),
    ("options[0]", {"options": [[1]], "scoring": "label"}),
    ("options[1]", {"options": ["a", [1]], "normalize": "char"}),
    ("options[1]", {"options": ["a", [1]], "normalize": "byte"}),
    ("question", {"question": 3}),
    ("question", {"question": "\x00"}),
    ("scoring", {"scoring": "loglikelihood"}),
    ("normalize", {"normalize": "tokens"}),
    ("normalize", {"normalize": "label"}),
    ("normalize", {"normalize": "char", "scoring": "label"}),
    ("labels", {"labels": [" yes"]}),
    ("labels", {"labels": [], "scoring": "label"}),
    ("labels", {"labels": " yes", "scoring": "label"}),
    ("labels", {"labels": [" yes", " yes"], "scoring": "label"}),
    ("labels", {"labels": [str(i) for i in range(65)], "scoring": "label"}),
    ("labels", {"labels": [" yes"], "scoring": "label", "normalize": "label"}),
    ("labels", {"template": Template(), "scoring": "label"}),
    ("labels[0]", {"labels": [""], "scoring": "label"}),
    ("labels[0]", {"labels": [-1], "scoring": "label"}),
    ("labels[0]", {"labels": [None], "scoring": "label"}),
    ("template", {"template": " {option}"}),
    ("template.before_option", {"template": Template(before_option="\x00")}),
    ("model", {"model": ""}),
    ("group_id", {"group_id": ""}),
    ("group_id", {"group_id": "a b"}),
    ("group_id", {"group_id": "x" * 129}),
    ("cache_salt", {"cache_salt": ""}),
    ("cache_salt", {"cache_salt": "x" * 257}),
]


@pytest.mark.parametrize(("field", "change"), BAD, ids=lambda value: str(value)[:50])
def test_bad_input_is_refused_and_named(field: str, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError) as caught:
        plan(**change)
    error = caught.value
    assert isinstance(error, ValueError)
    assert error.field == field
    assert str(error).startswith(field)
    assert str(error).endswith(".")
    assert len(str(error)) < 400


def test_a_template_refuses_what_is_not_text() -> None:
    with pytest.raises(InvalidInputError, match=r"template\.after_option"):
        Template(after_option=None)  # type: ignore[arg-type]


@given(
    document=st.one_of(st.text(), st.lists(st.integers()), st.floats(), st.none()),
    options=st.lists(st.one_of(st.text(), st.lists(st.integers()), st.none())),
    question=st.one_of(st.none(), st.text(), st.just(math.nan)),
    scoring=st.sampled_from(["likelihood", "label"]),
    normalize=st.sampled_from(["sum", "mean", "char", "byte", "label"]),
)
def test_any_input_gives_a_plan_or_invalid_input(**given: Any) -> None:
    document, options = given.pop("document"), given.pop("options")
    with contextlib.suppress(InvalidInputError):
        made = make_plan(ScoreRequest(document, options, **given))
        assert sum(map(len, made.members)) == len(options)
        assert all(branch.content for branch in made.request.branches)
