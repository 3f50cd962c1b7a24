"""Scores read beside the prefix cache are the scores without it."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.loads import SIZES, Load, loads
from tests.e2e.served import Answer, Served, fresh_salt, rounded

pytestmark = pytest.mark.server

Encode = Callable[[str], list[int]]
Rows = Sequence[Sequence[float]]
PROMISED = 0.1
"""Nats that the score of an option may be off (bfloat16)."""


def ask(server: Served, load: Load, salt: str) -> Answer:
    return server.group(
        load.document, load.branches, question=load.text_question, cache_salt=salt
    )


def reference(server: Served, load: Load, encode: Encode) -> list[list[float]]:
    """Each option's rows by one uncached request, from its own encoding."""
    context = load.document + load.text_question
    rows = server.uncached([encode(context + branch) for branch in load.branches])
    before = len(encode(context))
    return [row[before - 1 :] for row in rows]


def same(left: Rows, right: Rows) -> float:
    """Token by token the same, up to rounding; the largest difference."""
    off = 0.0
    for row, others in zip(left, right, strict=True):
        assert row == [rounded(value) for value in others]
        off = max(off, *(abs(a - b) for a, b in zip(row, others, strict=True)))
    return off


def check(answer: Answer, expected: list[list[float]]) -> float:
    """The same sums, the same ranking outside the margin, the same rows."""
    sums = [sum(row) for row in expected]
    for index, (one, other) in enumerate(zip(answer.sums, sums, strict=True)):
        assert one == pytest.approx(other, abs=PROMISED)
        for rival, rival_sum in enumerate(sums):
            if other - rival_sum > 2 * PROMISED:
                assert one > answer.sums[rival], (index, rival)
    return same(answer.rows, expected)


@pytest.mark.parametrize(
    "load", loads(), ids=[f"{n} facts, {m} filler" for n, m in SIZES]
)
def test_cold_and_warm_groups_score_as_without_the_cache(
    server: Served,
    load: Load,
    salt: str,
    encode: Encode,
    record_property: Callable[[str, object], None],
) -> None:
    expected = reference(server, load, encode)
    unit = server.stats()["settings"]["match_unit"]
    server.wait_until_idle()
    cold, warm = ask(server, load, salt), ask(server, load, salt)
    rounds = [cold.usage["rounds"]]
    # The document, the question where it is shared too, the branches.
    asked = cold.started["shared_tokens"] > cold.started["document_tokens"] > unit
    least = 3 if asked else 2
    while min(rounds) > least and len(rounds) < 4:  # its branches came one by one
        rounds.append(ask(server, load, fresh_salt()).usage["rounds"])
    record_property("off", max(check(cold, expected), check(warm, expected)))
    document = cold.started["document_tokens"]
    shared = cold.started["shared_tokens"]
    assert shared >= document - 1
    # One branch computes the document, the others resume behind it, or behind the
    # question where that is worth a checkpoint.
    for cached in (*sorted(cold.cached)[1:], *warm.cached):
        assert document - unit <= cached < shared + unit
    # Fewer where there is no state to wait for, and all branches came at once.
    assert min(rounds) <= least


def test_documents_are_of_every_size(server: Served, encode: Encode) -> None:
    block = server.stats()["settings"]["block_size"]
    blocks = [len(encode(load.document)) / block for load in loads()]
    assert min(blocks) < 0.5
    assert any(0.8 < size < 1.3 for size in blocks)
    assert max(blocks) > 8


def test_most_rows_are_off_by_nothing(server: Served, encode: Encode) -> None:
    off = sorted(
        abs(one - other)
        for load in (*loads(2), *loads(3))
        for row, others in zip(
            ask(server, load, fresh_salt()).rows,
            reference(server, load, encode),
            strict=True,
        )
        for one, other in zip(row, others, strict=True)
    )
    assert off[len(off) // 2] <= 0.001
    assert off[len(off) * 9 // 10] <= 0.03


def together(server: Served, asked: Sequence[Load], salt: str) -> list[Answer]:
    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(lambda load: ask(server, load, salt), asked))


def test_fewer_rounds_than_stock_order_and_the_same_scores(
    server: Served, encode: Encode
) -> None:
    rounds: dict[str, int] = {}
    answers: dict[str, list[Answer]] = {}
    ours = server.stats()["policy"]["name"]
    assert ours != "radix"
    asked = [*loads(0), *loads(1)]
    for name in (ours, "radix"):
        with server.policy(name):
            before = server.counters()["rounds"]
            answers[name] = together(server, asked, fresh_salt())
            rounds[name] = server.counters()["rounds"] - before
    assert rounds[ours] < rounds["radix"]
    for mine, stock, load in zip(answers[ours], answers["radix"], asked, strict=True):
        same(mine.rows, stock.rows)
        check(mine, reference(server, load, encode))


def test_a_policy_is_not_switched_under_way(server: Served, salt: str) -> None:
    load = loads()[-1]
    many = load.branches * 500
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            server.group, load.document, many, question="?", cache_salt=salt
        )
        while not server.in_flight():
            assert not running.done()
        answer = server.post({"name": "radix"}, "/v1/radixflow/policy")
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "busy"
        running.result()


@pytest.mark.parametrize("count", [64, 300])
def test_many_branches(server: Served, salt: str, encode: Encode, count: int) -> None:
    load = loads()[4]
    words = [word for other in loads() for word in other.options]
    options = tuple(f"{words[n % 32]} and {words[n // 32]}" for n in range(count))
    many = Load(load.document, load.question, options)
    answer = ask(server, many, salt)
    assert answer.completed["completed"] == count
    shared = answer.started["shared_tokens"]
    unit = server.stats()["settings"]["match_unit"]
    # All but the branch that computes the document resume behind it, or behind the
    # question.
    assert sorted(answer.cached)[1] >= answer.started["document_tokens"] - unit
    assert max(answer.cached) < shared + unit
    few = range(0, count, count // 16)
    some = Load(load.document, load.question, tuple(options[i] for i in few))
    same([answer.rows[i] for i in few], reference(server, some, encode))


def test_repeats_give_the_same_numbers(server: Served, salt: str) -> None:
    load = loads()[5]
    answers = [ask(server, load, salt) for _ in range(4)]
    # The first computes the document, in another batch than those that resume, and a
    # repeat may resume further on than the one before it.
    for later in answers[1:]:
        assert same(later.rows, answers[0].rows) <= 0.01


def test_duplicates_and_prefixes(server: Served, salt: str, encode: Encode) -> None:
    options = ("Port", "Port Alma", "Port", "Port Alma and", "Port Alma", "P")
    load = Load(loads()[3].document, "Where does Anna live?", options)
    answer = ask(server, load, salt)
    same(answer.rows, reference(server, load, encode))
    rows = answer.rows
    same([rows[0], rows[1]], [rows[2], rows[4]])
    assert rows[1][: len(rows[0])] == [rounded(one) for one in rows[0]]
    assert rows[3][: len(rows[1])] == [rounded(one) for one in rows[1]]


def test_two_groups_meet_on_one_document(
    server: Served, salt: str, encode: Encode
) -> None:
    load = loads()[6]
    other = Load(load.document, "Where is the lamp kept?", ("in the attic", "behind"))
    for answer, asked in zip(
        together(server, [load, other], salt), [load, other], strict=True
    ):
        same(answer.rows, reference(server, asked, encode))


def test_twenty_groups_at_once(server: Served, salt: str) -> None:
    asked = [load for seed in range(2, 5) for load in loads(seed)][:20]
    at_once = together(server, asked, salt)
    for load, answer in zip(asked, at_once, strict=True):
        same(answer.rows, ask(server, load, fresh_salt()).rows)
    assert server.wait_until_idle() < 5


def test_a_salt_is_a_cache_of_its_own(server: Served) -> None:
    load = loads()[5]
    first, second = (ask(server, load, fresh_salt()) for _ in range(2))
    for answer in (first, second):  # each computes its document
        assert answer.usage["computed_tokens"] >= answer.started["document_tokens"]


# --- other forms of a document --------------------------------------------------------


def test_token_ids_score_as_the_text(server: Served, salt: str, encode: Encode) -> None:
    load = loads()[5]
    context = load.document + load.text_question
    ids = {"token_ids": encode(context)}
    answer = server.post(
        {
            "document": ids,
            "branches": [
                {"token_ids": encode(context + branch)[len(ids["token_ids"]) :]}
                for branch in load.branches
            ],
            "cache_salt": salt,
        }
    )
    check(Answer.read(answer.text), reference(server, load, encode))


def test_chat_messages(server: Served, salt: str) -> None:
    load = loads()[4]
    messages = [{"role": "user", "content": f"{load.document}\n\n{load.question}"}]
    answer = server.group({"messages": messages}, load.branches, cache_salt=salt)
    rendered = server.post({"messages": messages}, "/tokenize").json()["tokens"]
    own = [answer.branches[index]["token_ids"] for index in range(4)]
    rows = server.uncached([[*rendered, *ids] for ids in own])
    expected = [row[-len(ids) :] for row, ids in zip(rows, own, strict=True)]
    check(answer, expected)
    assert answer.started["document_tokens"] == len(rendered)


def test_labels_by_text_and_by_id(server: Served, salt: str, encode: Encode) -> None:
    load = loads()[5]
    question = f"\n\nQuestion: {load.question}"
    branches = [f"\nCandidate: {option}\nCorrect:" for option in load.options]
    [yes], [no] = encode(" yes"), encode(" no")

    def read(labels: list[object]) -> Answer:
        return server.group(
            load.document,
            branches,
            question=question,
            scoring="label",
            labels=labels,
            cache_salt=salt,
        )

    by_text, by_id = read([" yes", " no"]), read([no, yes])
    for one, other in zip(by_text.labels, by_id.labels, strict=True):
        assert one == [rounded(value) for value in other[::-1]]
    prompts = [encode(load.document + question + branch) for branch in branches]
    for index, label in enumerate((yes, no)):
        rows = server.uncached([[*prompt, label] for prompt in prompts])
        for row, answer in zip(rows, by_text.labels, strict=True):
            assert answer[index] == rounded(row[-1])
    unit = server.stats()["settings"]["match_unit"]
    resumed = sorted(by_text.cached)[1:]
    assert min(resumed) >= by_text.started["document_tokens"] - unit
