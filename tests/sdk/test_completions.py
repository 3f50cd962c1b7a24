"""A server without the plug-in: exact all the same, and it is said how."""

import logging
from typing import Any

import httpx
import pytest

from radixflow_sdk import (
    ContextTooLongError,
    InvalidRequestError,
    InvalidResponseError,
    PartialGroupError,
    PluginMissingError,
    RadixFlowClient,
    ScoreResult,
    Template,
)
from radixflow_sdk._transport._rows import MAX_IDS, Prompt, Row, Trie, read_generated
from tests.sdk.stock import BOS, StockServer
from tests.sdk.wire import client

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:Async generator 'http(x|core):ResourceWarning"),
]

DOCUMENT = "Anna lives in Port Alma. Boris lives in Kelso."
QUESTION = "Where does Anna live?"
OPTIONS = ["Port Alma", "Port", "Port Alma and Kelso", "Kelso", "Port Alma"]
CONTEXT = f"{DOCUMENT}\n\nQuestion: {QUESTION}\nAnswer:"


async def score(server: StockServer, *rest: Any, **options: Any) -> ScoreResult:
    document, choices = rest or (DOCUMENT, OPTIONS)
    route = options.pop("route", "auto")
    async with client(server, route=route) as radixflow:
        return await radixflow.score_candidates(document, choices, **options)


def sums(result: ScoreResult) -> list[float]:
    by_option = sorted(result.candidates, key=lambda candidate: candidate.index)
    return [candidate.score for candidate in by_option]


@pytest.mark.parametrize("route", ["trie", "echo"])
@pytest.mark.parametrize("adds_bos", [False, True])
async def test_the_sums_are_those_of_the_rows(route: str, adds_bos: bool) -> None:
    server = StockServer(adds_bos=adds_bos)
    result = await score(server, question=QUESTION, route=route)
    context = [BOS] * adds_bos + server.encode(CONTEXT)
    wanted = [server.sum(context, server.encode(f" {option}")) for option in OPTIONS]
    assert sums(result) == pytest.approx(wanted, abs=1e-12)
    assert result.route == route
    assert result.shared_tokens == len(context)
    assert result.document_tokens == adds_bos + len(server.encode(DOCUMENT))
    greedy = [c.is_greedy for c in result.candidates]
    assert None not in greedy
    assert result.usage.cached_tokens == 0


async def test_both_routes_know_what_is_greedy() -> None:
    server = StockServer()
    ids = server.encode(DOCUMENT)
    for _ in range(3):
        row = server.row(ids)
        ids.append(max(range(len(row)), key=row.__getitem__))
    document = server.encode(DOCUMENT)
    options = [ids[len(document) :], [*ids[len(document) : -1], 17]]
    for route in ("trie", "echo"):
        result = await score(server, document, options, route=route)
        tops = {c.index: c.is_greedy for c in result.candidates}
        assert tops == {0: True, 1: False}


async def test_options_that_begin_alike_share_rows_in_one_request() -> None:
    server = StockServer()
    await score(server, question=QUESTION, route="trie")
    [body] = [body for path, body in server.requests if path == "/v1/completions"]
    context = server.encode(CONTEXT)
    ends = [prompt[len(context) :] for prompt in body["prompt"]]
    words = [server.encode(text) for text in (" Port", " Port Alma", " Port Alma and")]
    assert ends == [[], *words]


async def test_the_trie_is_asked_for_in_parts() -> None:
    server = StockServer()
    options = [[number] for number in range(150)] + [[7, n, 8] for n in range(100)]
    result = await score(server, [3, 4, 5], options, route="trie")
    wanted = [server.sum([3, 4, 5], option) for option in options]
    assert sums(result) == pytest.approx(wanted, abs=1e-12)
    parts = [body for path, body in server.requests if path == "/v1/completions"]
    assert len(parts) > 2
    assert max(len(part["logprob_token_ids"]) for part in parts) <= MAX_IDS
    assert max(len(part["prompt"]) for part in parts) <= 64


async def test_labels() -> None:
    server = StockServer()
    result = await score(server, question=QUESTION, scoring="label")
    context = server.encode(f"{DOCUMENT}\n\nQuestion: {QUESTION}")
    for candidate in result.candidates:
        own = server.encode(f"\nCandidate: {candidate.text}\nCorrect:")
        row = server.row([*context, *own])
        [yes] = server.encode(" yes")
        assert candidate.score == pytest.approx(row[yes], abs=1e-12)
        assert candidate.labels is not None
        assert [label.label for label in candidate.labels] == [" yes", " no"]
        assert candidate.tokens[0].logprob == max(row)
    assert result.route == "trie"


async def test_a_server_that_gives_no_chosen_rows_is_asked_to_echo() -> None:
    server = StockServer(knows_ids=False)
    async with client(server, route="auto") as radixflow:
        results = [
            await radixflow.score_candidates(DOCUMENT, OPTIONS) for _ in range(2)
        ]
        with pytest.raises(InvalidResponseError, match="rows lack tokens"):
            await radixflow.score_candidates(DOCUMENT, ["x"], scoring="label")
    assert [result.route for result in results] == ["echo", "echo"]
    context = server.encode(DOCUMENT)
    wanted = [server.sum(context, server.encode(f" {option}")) for option in OPTIONS]
    assert sums(results[0]) == pytest.approx(wanted, abs=1e-12)
    probes = [b for p, b in server.requests if b.get("logprob_token_ids") == [0, 1]]
    assert len(probes) == 1


async def test_it_is_found_out_once_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = StockServer()
    with caplog.at_level(logging.WARNING, "radixflow"):
        async with client(server, route="auto") as radixflow:
            for _ in range(2):
                result = await radixflow.score_candidates(DOCUMENT, OPTIONS)
    assert result.route == "trie"
    assert [path for path, _ in server.requests].count("/v1/branches") == 1
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "no RadixFlow plug-in" in caplog.text


async def test_the_plugin_alone_when_told_so() -> None:
    server = StockServer()
    with pytest.raises(PluginMissingError):
        await score(server, route="branches")
    assert len(server.requests) == 1


async def test_a_server_that_is_none_is_named_by_what_it_lacks_first() -> None:
    nothing = httpx.Response(404, json={"detail": "Not Found"})
    async with client(lambda request: nothing, route="auto") as radixflow:
        with pytest.raises(PluginMissingError, match="/v1/branches"):
            await radixflow.score_candidates(DOCUMENT, OPTIONS)


async def test_chat_messages_need_the_plugin() -> None:
    chat = [{"role": "user", "content": "Hello"}]
    with pytest.raises(PluginMissingError, match="chat messages"):
        await score(StockServer(), chat, ["x"])


@pytest.mark.parametrize("value", [-9999.0, 0.5])
@pytest.mark.parametrize("route", ["trie", "echo"])
async def test_a_number_that_is_none_fails_its_branch(value: float, route: str) -> None:
    server = StockServer()
    [kelso] = server.encode(" Kelso")
    server.changed[kelso] = value
    with pytest.raises(PartialGroupError) as caught:
        await score(server, question=QUESTION, route=route)
    # The likeliest token is doubted too: above 0 it stands before all others.
    failed = {failure.index for failure in caught.value.failures}
    assert 3 in failed
    assert {failure.code for failure in caught.value.failures} == {"non_finite_logprob"}


@pytest.mark.parametrize(
    ("arguments", "code", "field", "kind"),
    [
        (("Ans", ["wer"]), "empty_branch", "branches.0", InvalidRequestError),
        (("x " * 2000, ["y"]), "context_too_long", "branches.0", ContextTooLongError),
        ((" ", ["y"]), "invalid_request", "document", InvalidRequestError),
    ],
)
async def test_what_the_plugin_refuses_is_refused_by_its_name(
    arguments: Any, code: str, field: str, kind: type[InvalidRequestError]
) -> None:
    with pytest.raises(kind) as caught:
        await score(StockServer(), *arguments, template=Template(before_option=""))
    assert (caught.value.code, caught.value.field) == (code, field)


async def test_a_label_of_two_tokens_is_refused() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await score(StockServer(), scoring="label", labels=[" yes", " no way"])
    assert (caught.value.code, caught.value.field) == (
        "label_not_one_token",
        "labels.1",
    )


async def test_a_branch_that_changes_the_context_is_scored_from_its_own_count() -> None:
    """``Ans`` + ``wer is`` is ``Answer| is``: what follows one token is `` is``."""
    server = StockServer()
    result = await score(
        server, "x Ans", ["wer is", " no"], template=Template(before_option="")
    )
    changed, plain = server.encode("x Answer is"), server.encode("x Ans no")
    assert sums(result) == pytest.approx(
        [server.sum(changed[:2], changed[2:]), server.sum(plain[:2], plain[2:])]
    )
    assert result.shared_tokens == 1


async def test_a_text_that_brings_its_bos_gets_no_other() -> None:
    server = StockServer(adds_bos=True)
    result = await score(server, f"<s>{DOCUMENT}", OPTIONS)
    context = [BOS, *server.encode(DOCUMENT)]
    wanted = [server.sum(context, server.encode(f" {option}")) for option in OPTIONS]
    assert sums(result) == pytest.approx(wanted, abs=1e-12)


async def test_what_is_sent_along() -> None:
    server = StockServer()
    async with client(server, cache_salt="s", route="trie") as radixflow:
        view = radixflow.with_options(extra_headers={"X-Extra": "1"})
        await view.with_options(extra_body={"priority": 3}).score_candidates("d", ["x"])
    path, body = server.requests[-1]
    assert path == "/v1/completions"
    assert (body["cache_salt"], body["priority"]) == ("s", 3)
    names = [headers["x-request-id"] for headers in server.headers]
    assert len(set(names)) == len(names)
    assert len({headers["x-session-id"] for headers in server.headers}) == 1
    assert server.headers[-1]["x-extra"] == "1"


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'{"choices": []}',
        b'{"choices": [{"index": 0, "logprobs": null}]}',
        b'{"choices": [{"index": 1, "logprobs": {"tokens": ["token_id:1"], '
        b'"top_logprobs": [{"token_id:1": -1.0}]}}]}',
        b'{"choices": [{"index": 0, "logprobs": {"tokens": ["the"], '
        b'"top_logprobs": [{"the": -1.0}]}}]}',
        b'{"choices": [{"index": 0, "logprobs": {"tokens": ["token_id:1"], '
        b'"top_logprobs": [null]}}]}',
    ],
)
def test_another_servers_answer_is_no_number(body: bytes) -> None:
    with pytest.raises(InvalidResponseError, match="vLLM"):
        read_generated(body, 1)


def test_a_trie_knows_when_a_branch_is_complete() -> None:
    trie = Trie(
        [Prompt((1, 2, 5, 6), 2), Prompt((1, 2, 5, 7), 2), Prompt((1, 9, 8), 2)]
    )
    [pack] = trie.packs()
    assert trie.shared == (1,)
    assert pack.ends == [(2,), (2, 5), (9,)]
    rows = [Row(5, {5: -1.0}), Row(6, {6: -1.0}), Row(8, {8: -1.0})]
    trie.add(pack, rows)
    assert [trie.complete(index) for index in range(3)] == [True, False, True]
    assert trie.rows(0) == rows[:2]


def test_the_route_is_checked() -> None:
    with pytest.raises(ValueError, match="route is 'fast'"):
        RadixFlowClient(route="fast")  # type: ignore[arg-type]
