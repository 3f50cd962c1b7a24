# ruff: noqa: RUF001  (full-width punctuation is meant)
"""The token boundary: lm-eval's rule, the document encoded once, every refusal."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.reading import likelihood_prompt, make_document
from server_ext.api.context import Context
from server_ext.api.protocol import BranchesRequest, RequestRefused
from server_ext.api.tokens import GroupPrompts, group_prompts, message_ends
from tests.server.real_tokenizers import NAMES, tokenizer_named

LONG = make_document(seed=1, facts=12, questions=1).text
QUESTION = "\n\nQuestion: Where does Anna live?\nAnswer:"
CHINESE = "安娜住在奥斯陆。她的哥哥汤姆住在罗马，他们每年夏天都在巴黎见面。" * 6
THAI = "แอนนาอาศัยอยู่ในออสโล ทอมอาศัยอยู่ในโรม พวกเขาพบกันที่ปารีสทุกฤดูร้อน " * 6
EMOJI = "Anna 👩‍👩‍👧 lives 🏠 in Oslo 🇳🇴! " * 8

# Two paragraphs of XQuAD in each of three scripts, one of PubMedQA; licences inside.
EXCERPTS = json.loads(Path(__file__).with_name("excerpts.json").read_text("utf-8"))

# (context, branch); the first ones are the traps of DESIGN.md.
PAIRS = [
    ("Answer: ", "Paris"),
    ("Answer:", " Paris"),
    ("Answer:\n\n", "Yes"),
    ("Answer:", "\n\nYes"),
    (LONG + QUESTION, " Port Alma"),
    (LONG + QUESTION + " ", "Port Alma"),
    (LONG + QUESTION + "  \n ", "Port Alma"),
    (LONG + QUESTION, "Oslo"),
    (LONG + QUESTION, " Oslo "),
    (LONG + QUESTION, "  Oslo\n\n"),
    (LONG + QUESTION, "\n\nYes"),
    (LONG, " and so on. "),
    (LONG, ".."),
    (LONG + " It is 12", "34 metres"),
    (LONG + " def f(", "self) -> None:\n    pass"),
    (LONG + "\t", "\tx"),
    (LONG, "\u3000全角"),
    (CHINESE, "奥斯陆"),
    (CHINESE, "，他住在奥斯陆。"),
    (CHINESE + "\n\n问题：安娜住在哪里？\n答案：", "奥斯陆"),
    (CHINESE + QUESTION, " 奥斯陆"),
    (THAI, "ออสโล"),
    (THAI + QUESTION, " ออสโล"),
    (EMOJI, "🇳🇴"),
    (EMOJI, "\u200d👧"),
    (EMOJI + QUESTION, " 👩‍👩‍👧"),
    ("e\u0301" * 80, "\u0301e"),
    ("naïve café " * 20, "ﬁn"),
    ("a" * 300, "a" * 7),
    ("word " * 60, "word"),
    ("1 2 3 4 5 6 7 8 9 " * 10, "10"),
    ("- a\n- b\n" * 30, "- c\n"),
    ("x", "y"),
    ("", " Oslo"),
]


def encode(tokenizer: Any, text: str, *, special: bool = False) -> list[int]:
    return list(tokenizer(text, add_special_tokens=special)["input_ids"])


def encode_pair(
    tokenizer: Any, context: str, continuation: str
) -> tuple[list[int], list[int], list[int]]:
    """``LM._encode_pair`` of lm-evaluation-harness 0.4: context, continuation, both."""
    spaces = len(context) - len(context.rstrip())
    if spaces > 0:
        continuation = context[-spaces:] + continuation
        context = context[:-spaces]
    whole = encode(tokenizer, context + continuation, special=True)
    context_tokens = encode(tokenizer, context, special=True)
    return context_tokens, whole[len(context_tokens) :], whole


def request(document: str | dict[str, Any], **fields: Any) -> BranchesRequest:
    document = {"text": document} if isinstance(document, str) else document
    body = {"document": document, "branches": [{"text": " Oslo"}]} | fields
    return BranchesRequest.model_validate(body)


def prompts(
    tokenizer: Any, asked: BranchesRequest, *, limit: int = 100_000
) -> GroupPrompts:
    return group_prompts(asked, tokenizer, vocabulary=len(tokenizer), limit=limit)


class Counting:
    """A tokenizer that counts the characters it is given."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.lengths: list[int] = []

    def __call__(self, text: str, **options: Any) -> Any:
        self.lengths.append(len(text))
        return self.inner(text, **options)

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("context", "branch"), PAIRS, ids=range(len(PAIRS)))
def test_the_rule_is_that_of_lm_eval(name: str, context: str, branch: str) -> None:
    tokenizer = tokenizer_named(name)
    before, own, whole = encode_pair(tokenizer, context, branch)
    if not context or not own:
        return  # lm-eval makes do with an EOS; here it is refused, see below
    made = prompts(tokenizer, request(context, branches=[{"text": branch}]))
    assert made.prompt(0) == whole
    assert made.prompt(0)[made.branches[0].scored_from :] == own
    assert made.branches[0].scored_from == len(before)
    assert len(made.branches[0]) == len(whole)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "form",
    [("\n\nQuestion: {}\nAnswer:", " {}"), ("\n\n{}\n", "{}"), ("", "{}")],
    ids=["asked", "blanks move", "nothing between"],
)
@pytest.mark.parametrize("excerpt", EXCERPTS, ids=lambda one: one["language"])
def test_real_text_in_three_scripts(
    name: str, form: tuple[str, str], excerpt: dict[str, Any]
) -> None:
    tokenizer = tokenizer_named(name)
    for asked in excerpt["questions"]:
        context = excerpt["document"] + form[0].format(asked["question"])
        branches = [form[1].format(option) for option in asked["options"]]
        made = prompts(
            tokenizer, request(context, branches=[{"text": text} for text in branches])
        )
        for index, branch in enumerate(branches):
            before, own, whole = encode_pair(tokenizer, context, branch)
            assert own
            assert made.prompt(index) == whole
            assert made.branches[index].scored_from == len(before)


@pytest.mark.parametrize("name", NAMES)
def test_question_and_document_are_one_context(name: str) -> None:
    tokenizer = tokenizer_named(name)
    for document, question in [
        (LONG, QUESTION),
        (LONG + "\n", QUESTION),
        (LONG + "  ", " Where?  "),
        ("", QUESTION),
        ("   ", "Where?"),
        (LONG, "   "),
        (LONG[:-1], "?" + QUESTION),
    ]:
        apart = prompts(tokenizer, request(document, question=question))
        joint = prompts(tokenizer, request(document + question))
        assert apart.prompt(0) == joint.prompt(0)
        assert apart.branches == joint.branches
        inside = tokenizer.decode(apart.context[: apart.document_tokens])
        assert name == "llama-style" or document.startswith(inside)
        assert apart.document_tokens >= len(encode(tokenizer, document)) - 2
        assert apart.shared_tokens <= min(b.keep for b in apart.branches)


@pytest.mark.parametrize("name", NAMES)
def test_all_branches_share_what_is_said_to_be_shared(name: str) -> None:
    tokenizer = tokenizer_named(name)
    texts = [" Oslo", "Oslo", "\n\nYes", ".", "..", " Oslo", "  x ", "\u0301"]
    made = prompts(
        tokenizer, request(LONG + "Ans", branches=[{"text": text} for text in texts])
    )
    whole = [made.prompt(index) for index in range(len(texts))]
    assert all(p[: made.shared_tokens] == whole[0][: made.shared_tokens] for p in whole)
    assert made.prompt(0) == made.prompt(5)
    assert made.shared_tokens >= len(encode(tokenizer, LONG)) - 2


@pytest.mark.parametrize("name", ["gpt2-style", "tekken"])
def test_a_branch_that_changes_the_context(name: str) -> None:
    """``Ans`` + ``wer`` is ``An|swer``: the joint encoding has no ``s`` to share."""
    tokenizer = tokenizer_named(name)
    context, branch = LONG + " Ans", "werable question"
    before, own, whole = encode_pair(tokenizer, context, branch)
    assert whole[: len(before)] != before
    made = prompts(
        tokenizer, request(context, branches=[{"text": branch}, {"text": " x"}])
    )
    assert made.prompt(0) == whole
    assert made.branches[0].keep < len(before) == made.branches[0].scored_from
    assert made.prompt(0)[len(before) :] == own
    assert made.shared_tokens == made.branches[0].keep
    assert made.prompt(1)[: len(before)] == before


@pytest.mark.parametrize("name", ["gpt2-style", "tekken"])
def test_a_branch_that_melts_into_the_context_is_refused(name: str) -> None:
    tokenizer = tokenizer_named(name)
    asked = request(LONG + " Ans", branches=[{"text": " x"}, {"text": "wer"}])
    with pytest.raises(RequestRefused, match="word boundary") as caught:
        prompts(tokenizer, asked)
    assert (caught.value.code, caught.value.field) == ("empty_branch", "branches.1")


_texts = st.text(
    st.sampled_from(
        "aeinorst AEN.,:;!?'\"-_()\n\t0123 é\u0301ñß中文。，ไทย👩‍👧🇳🇴\u00a0"
    ),
    max_size=60,
)
_words = st.lists(
    st.sampled_from(["Anna", "Ans", "Answer", "lives", "in", "Oslo", "swer", "中文"]),
    max_size=40,
).map(" ".join)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60)
@given(context=st.tuples(_words, _texts, _words, _texts).map("".join), branch=_texts)
def test_a_seam_gives_the_joint_encoding(name: str, context: str, branch: str) -> None:
    tokenizer = tokenizer_named(name)
    made = Context(tokenizer, context).continued_by(branch)
    whole = encode(tokenizer, context + branch)
    before = encode(tokenizer, context.rstrip())
    assert [*before[: made.keep], *made.tail] == whole
    assert made.scored_from == len(before)


_ideographs = "安娜住在奥斯陆她的哥哥汤姆住罗马他们每年夏天都巴黎见面"
_runs = st.one_of(
    st.text(st.sampled_from("0123456789"), min_size=100, max_size=400),
    st.text(st.sampled_from(_ideographs), min_size=100, max_size=400),
    st.text(st.sampled_from("aAbB"), min_size=100, max_size=200),
    st.text(st.sampled_from("แอนนาอาศัยอยู่ในออสโล"), min_size=100, max_size=200),
    st.sampled_from(
        ["1 2 3 4 ", "| 12 | 7,123 |\n", "=", " ", "don't", "CamelCase"]
    ).map(lambda text: text * 60),
    _texts,
)
_after = _texts | st.sampled_from(["0", "00", "Bb", "中A", "'s", "\u0301", " x", "\n"])


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60)
@given(context=st.lists(_runs, max_size=4).map("".join), branch=_after)
def test_a_seam_in_runs_of_one_kind(name: str, context: str, branch: str) -> None:
    """Digits, tables, Chinese: texts without a blank between two words."""
    tokenizer = tokenizer_named(name)
    made = Context(tokenizer, context).continued_by(branch)
    before = encode(tokenizer, context.rstrip())
    assert [*before[: made.keep], *made.tail] == encode(tokenizer, context + branch)
    assert made.scored_from == len(before)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\p{N}{1,3}|[^\r\n\p{L}\p{N}]?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"\d{1,3}(?=(?:\d{3})*\b)|[^\r\n\p{L}\p{N}]?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+",
    ],
    ids=["from the left", "from the right"],
)
@pytest.mark.parametrize("digits", [300, 301, 302])
@pytest.mark.parametrize("branch", ["7", "77", " x", "x", ","])
def test_digits_in_threes(pattern: str, digits: int, branch: str) -> None:
    """Counted from the right, one digit more moves every boundary before it."""
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = copy.deepcopy(tokenizer_named("gpt2-style"))
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    letters = tokenizers.pre_tokenizers.ByteLevel(False, use_regex=False)
    both = tokenizers.pre_tokenizers.Sequence([split, letters])
    tokenizer.backend_tokenizer.pre_tokenizer = both
    context = "Pi is " + ("31415926535897932384626433832795" * 10)[:digits]
    made = Context(tokenizer, context).continued_by(branch)
    before = encode(tokenizer, context)
    assert [*before[: made.keep], *made.tail] == encode(tokenizer, context + branch)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "document",
    [
        "1 2 3 4 " * 2500,
        "0123456789" * 2000,
        "| 12 | 3.5 |\n" * 1500,
        _ideographs * 700,
    ],
    ids=["digits and blanks", "digits", "a table", "Chinese"],
)
def test_a_document_without_words_is_encoded_once(name: str, document: str) -> None:
    counting = Counting(tokenizer_named(name))
    branches = [{"text": f" option {number}"} for number in range(50)]
    prompts(counting, request(document, branches=branches))
    assert sum(length > 1500 for length in counting.lengths) == 1
    assert sum(counting.lengths) < 1.5 * len(document)


@pytest.mark.parametrize("name", ["gpt2-style", "tekken"])
def test_a_label_is_encoded_once_for_branches_that_end_alike(name: str) -> None:
    counting = Counting(tokenizer_named(name))
    branches = [{"text": f"\nCandidate: {n}\nCorrect:"} for n in range(100)]
    made = {"branches": branches, "scoring": "label", "labels": [" yes", " no"]}
    prompts(counting, request(LONG, **made))
    assert len(counting.lengths) < 100 + 20


def test_a_label_may_be_another_token_after_another_ending() -> None:
    """The second branch ends in the middle of a word that the label completes."""
    branches = [" x", " x", " Ans"]
    with pytest.raises(RequestRefused, match="not exactly one token"):
        prompts(tokenizer_named("gpt2-style"), labelled(["wer"], *branches))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("field", ["document", "question", "branches.1"])
def test_a_text_far_too_long_is_not_encoded_whole(name: str, field: str) -> None:
    counting, text = Counting(tokenizer_named(name)), LONG * 400
    fields: dict[str, Any] = {
        "document": {"document": text},
        "question": {"document": {"token_ids": [5]}, "question": text},
        "branches.1": {
            "document": LONG,
            "branches": [{"text": " a"}, {"text": text}, {"text": " b"}],
        },
    }[field]
    asked = request(**fields)
    with pytest.raises(RequestRefused) as caught:
        prompts(counting, asked, limit=1000)
    assert (caught.value.code, caught.value.field) == ("context_too_long", field)
    assert sum(counting.lengths) < len(text) / 2


def test_the_first_branch_that_does_not_fit_ends_the_work() -> None:
    counting = Counting(tokenizer_named("demo"))
    branches = [{"text": " word" * 200}] * 100
    with pytest.raises(RequestRefused, match="tokens") as caught:
        prompts(counting, request(LONG, branches=branches), limit=400)
    assert caught.value.field == "branches.0"
    assert len(counting.lengths) < 5


def test_a_long_text_of_few_tokens_is_taken() -> None:
    tokenizer = tokenizer_named("tekken")
    text = "x" + " " * 50_000 + "y"
    made = prompts(tokenizer, request(text), limit=4000)
    assert list(made.context) == encode(tokenizer, text)
    assert len(text) > 8 * (4000 + 256)


@pytest.mark.parametrize("name", NAMES)
def test_the_document_is_encoded_once(name: str) -> None:
    counting = Counting(tokenizer_named(name))
    document = LONG * 20
    branches = [{"text": f" option {number}"} for number in range(500)]
    asked = request(
        document,
        question=QUESTION,
        branches=branches,
        scoring="label",
        labels=[encode(counting, " x")[-1]],
    )
    counting.lengths.clear()
    prompts(counting, asked)
    assert sum(length > 1000 for length in counting.lengths) == 1
    assert sum(counting.lengths) < len(document) + 500 * 300


@pytest.mark.parametrize("document", [CHINESE, THAI], ids=["Chinese", "Thai"])
@pytest.mark.parametrize("name", ["gpt2-style", "tekken"])
def test_a_document_without_blanks_is_encoded_once(name: str, document: str) -> None:
    counting = Counting(tokenizer_named(name))
    branches = [{"text": f"，{number}。"} for number in range(50)]
    prompts(counting, request(document * 20, branches=branches))
    assert sum(length > 1000 for length in counting.lengths) == 1


# --- the BOS --------------------------------------------------------------------------


def test_a_bos_comes_exactly_once() -> None:
    tokenizer = tokenizer_named("llama-style")
    bos = tokenizer.bos_token_id
    for document in (LONG, "<s>" + LONG, "<s> " + LONG):
        made = prompts(tokenizer, request(document, question=QUESTION))
        assert made.prompt(0).count(bos) == 1
        assert made.prompt(0)[0] == bos
        own = made.prompt(0)[made.branches[0].scored_from :]
        assert "".join(tokenizer.convert_ids_to_tokens(own)) == "▁Oslo"
    ids = encode(tokenizer, LONG)
    made = prompts(tokenizer, request({"token_ids": ids}))
    assert bos not in made.prompt(0)


def test_a_bos_alone_is_a_context() -> None:
    tokenizer = tokenizer_named("llama-style")
    made = prompts(tokenizer, request("", question=" "))
    assert made.prompt(0)[0] == tokenizer.bos_token_id
    assert made.branches[0].scored_from == 1


@pytest.mark.parametrize("name", ["demo", "gpt2-style"])
def test_a_tokenizer_that_adds_no_bos_gets_none(name: str) -> None:
    tokenizer = tokenizer_named(name)
    made = prompts(tokenizer, request(LONG))
    assert made.context == tuple(encode(tokenizer, LONG))


# --- token ids, messages, labels ------------------------------------------------------


def test_token_ids_are_taken_as_they_are() -> None:
    tokenizer = tokenizer_named("demo")
    asked = request(
        {"token_ids": [5, 6, 7]},
        question=" Where?",
        branches=[{"token_ids": [9, 9]}, {"text": " Oslo"}],
    )
    made = prompts(tokenizer, asked)
    question, branch = encode(tokenizer, " Where?"), encode(tokenizer, " Oslo")
    assert made.document_tokens == 3
    assert made.prompt(0) == [5, 6, 7, *question, 9, 9]
    assert made.prompt(1) == [5, 6, 7, *question, *branch]
    assert {b.scored_from for b in made.branches} == {3 + len(question)}


def test_token_ids_follow_a_text() -> None:
    tokenizer = tokenizer_named("demo")
    made = prompts(tokenizer, request(LONG, branches=[{"token_ids": [9, 8]}]))
    assert made.prompt(0) == [*encode(tokenizer, LONG), 9, 8]


class Chat(Counting):
    """A tokenizer with a template, for models whose template is not to hand."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> str:
        assert options == {"tokenize": False, "add_generation_prompt": True}
        if conversation[0]["role"] == "clown":
            raise ValueError("no such role")
        lines = [f"<s>[{turn['role']}] {turn['content']}" for turn in conversation]
        return "\n".join([*lines, "[assistant] "])


def test_messages_are_rendered_with_a_generation_prompt() -> None:
    tokenizer = Chat(tokenizer_named("llama-style"))
    messages = [{"role": "user", "content": LONG}]
    asked = request({"messages": messages}, branches=[{"text": "Oslo"}])
    made = prompts(tokenizer, asked)
    text = f"<s>[user] {LONG}\n[assistant] Oslo"
    assert made.prompt(0) == encode(tokenizer.inner, text)
    assert made.prompt(0).count(tokenizer.inner.bos_token_id) == 1


def test_a_template_that_refuses() -> None:
    tokenizer = Chat(tokenizer_named("demo"))
    asked = request({"messages": [{"role": "clown", "content": "x"}]})
    with pytest.raises(RequestRefused, match="no such role") as caught:
        prompts(tokenizer, asked)
    assert caught.value.field == "document.messages"


def labelled(labels: list[str | int], *branches: str) -> BranchesRequest:
    return request(
        LONG,
        branches=[{"text": branch} for branch in branches],
        scoring="label",
        labels=labels,
    )


@pytest.mark.parametrize("name", NAMES)
def test_labels_are_one_token_after_every_branch(name: str) -> None:
    tokenizer = tokenizer_named(name)
    branches = [f"\nCandidate: {town}\nCorrect:" for town in ("Oslo", "Port Alma")]
    made = prompts(tokenizer, labelled([" yes", " no", " yes", 7], *branches))
    for label, token in zip((" yes", " no", " yes"), made.labels, strict=False):
        for branch in branches:
            assert encode(tokenizer, LONG + branch + label)[-1] == token
    assert made.labels[3] == 7


@pytest.mark.parametrize(
    ("labels", "branches", "field"),
    [
        ([" yes", " an unlikely answer"], [" x:"], "labels.1"),
        (["yes"], [" x:", " x: "], "labels.0"),
        (["swer"], [" Ans"], "labels.0"),
        ([" yes", "s"], [" x:", " yes"], "labels.1"),
    ],
    ids=["long", "after a blank", "melts", "melts after one"],
)
def test_a_label_that_is_not_one_token(
    labels: list[str | int], branches: list[str], field: str
) -> None:
    with pytest.raises(RequestRefused, match="not exactly one token") as caught:
        prompts(tokenizer_named("gpt2-style"), labelled(labels, *branches))
    assert (caught.value.code, caught.value.field) == ("label_not_one_token", field)
    assert caught.value.status == 422


# --- what does not fit the model ------------------------------------------------------


def test_the_limit_is_exact_and_nothing_is_cut() -> None:
    tokenizer = tokenizer_named("demo")
    branches = [{"token_ids": [5]}, {"token_ids": [5, 6]}]
    asked = request({"token_ids": [5] * 98}, branches=branches)
    assert len(prompts(tokenizer, asked, limit=100).prompt(1)) == 100
    with pytest.raises(RequestRefused, match="100 tokens") as caught:
        prompts(tokenizer, asked, limit=99)
    assert (caught.value.code, caught.value.field) == ("context_too_long", "branches.1")
    assert "99" in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"document": {"token_ids": [1, 100]}}, "document.token_ids"),
        ({"branches": [{"text": "a"}, {"token_ids": [100]}]}, "branches.1.token_ids"),
        ({"scoring": "label", "labels": [" a", 100]}, "labels"),
    ],
    ids=["document", "branch", "label"],
)
def test_a_token_beyond_the_vocabulary(fields: dict[str, Any], field: str) -> None:
    asked = request(**{"document": LONG} | fields)
    with pytest.raises(RequestRefused, match="vocabulary of 100") as caught:
        group_prompts(asked, tokenizer_named("demo"), vocabulary=100, limit=1000)
    assert (caught.value.code, caught.value.field) == ("token_out_of_range", field)


def test_nothing_comes_before_the_branch() -> None:
    asked = request("  ", question="\n", branches=[{"text": "Oslo"}])
    with pytest.raises(RequestRefused, match="nothing comes before") as caught:
        prompts(tokenizer_named("demo"), asked)
    assert (caught.value.code, caught.value.field) == ("invalid_request", "document")


# --- where prompts part ---------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_boundary_of_the_text_is_the_tokens_before_it(name: str) -> None:
    """Also behind a BOS, and where a token goes across it."""
    tokenizer = tokenizer_named(name)
    system, shots = "Answer briefly.\n\n", "Q: 2 + 2?\nA: 4\n\n" * 3
    parts = [len(system), len(system + shots), len(system + shots) + 3]
    asked = request(
        {"text": system + shots + LONG, "boundaries": parts},
        question=QUESTION,
        branches=[{"text": " a"}, {"text": " b"}],
    )
    made = prompts(tokenizer, asked)
    whole = tokenizer(system + shots + LONG + QUESTION, return_offsets_mapping=True)
    ends = [end for _, end in whole["offset_mapping"]]
    for at, boundary in zip(parts, made.boundaries, strict=False):
        assert ends[boundary - 1] <= at < ends[boundary]
    *_, document, shared = made.boundaries
    assert (document, shared) == (made.document_tokens, made.shared_tokens)
    assert shared == len(made.context)
    assert list(made.boundaries) == sorted(set(made.boundaries))


def test_boundaries_end_where_the_branches_part() -> None:
    """``Ans`` + ``wer`` is ``An|swer``: the document's end is not shared."""
    tokenizer = tokenizer_named("gpt2-style")
    branches = [{"text": "werable question"}, {"text": " x"}]
    asked = request(
        {"text": LONG + " Ans", "boundaries": [20, len(LONG) + 4]}, branches=branches
    )
    made = prompts(tokenizer, asked)
    assert made.boundaries[-1] == made.shared_tokens < made.document_tokens
    assert len(made.boundaries) == 2


def test_branches_that_share_nothing_have_no_boundary() -> None:
    tokenizer = tokenizer_named("gpt2-style")
    asked = request("A", branches=[{"text": "ns x"}, {"text": " x"}])
    made = prompts(tokenizer, asked)
    assert (made.shared_tokens, made.boundaries) == (0, ())


TEMPLATES = [
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n",
    "{%- for m in messages %}[{{ m.role }}] {{ m.content | trim }} {% endfor %}>",
    "{%- for m in messages %}{% if m.role != 'system' %}{{ m.content | upper }}"
    "{% else %}{{ m.content }} {% endif %}{% endfor %}",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_message_ends_where_the_next_content_begins(template: str) -> None:
    tokenizer = tokenizer_named("gpt2-style")
    turns = [
        ("system", "Be brief."),
        ("user", " Where does Anna live? "),
        ("assistant", "In Oslo."),
        ("user", ""),
        ("user", "Where does Anna live?"),
    ]
    messages = [{"role": role, "content": content} for role, content in turns]
    rendered = tokenizer.apply_chat_template(
        messages, tokenize=False, chat_template=template
    )
    ends = message_ends(rendered, [content for _, content in turns])
    if "upper" in template:
        assert ends == []  # nothing of ours but the first is in there
        return
    assert [rendered[at:].lstrip()[:8] for at in ends] == [
        "Where do",
        "In Oslo.",
        "Where do",
    ]
    assert ends == sorted(set(ends))


def test_the_ends_of_messages_are_found_in_one_pass() -> None:
    contents = ["a" * 99 + "b"] * 4096
    assert message_ends("a" * 500_000, contents) == []
    assert len(message_ends("".join(contents), contents)) == 62


def test_a_tokenizer_without_offsets() -> None:
    class Slow(Counting):
        is_fast = False

    tokenizer = tokenizer_named("demo")
    asked = request(LONG, question=QUESTION, branches=[{"text": " a"}, {"text": " b"}])
    assert prompts(Slow(tokenizer), asked) == prompts(tokenizer, asked)


def test_the_demo_prompt_is_the_trained_one() -> None:
    tokenizer = tokenizer_named("demo")
    text = likelihood_prompt(LONG, "Where does Anna live?")
    made = prompts(tokenizer, request(LONG, question=QUESTION))
    assert list(made.context) == encode(tokenizer, text)
