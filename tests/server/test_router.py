"""The routes, on a fake engine: events, failures, disconnects, slow readers."""

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from vllm.lora.request import LoRARequest
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from server_ext.api import router as router_module
from server_ext.api.group import BRANCHES_IN_FLIGHT, Load, Route
from server_ext.api.protocol import BranchesRequest, parse_request
from server_ext.policy.fairness import Window
from tests.server.fake_engine import (
    LIMIT,
    Asked,
    Client,
    FakeEngine,
    ended,
    finished,
    group,
    serve,
    until,
)

pytestmark = pytest.mark.asyncio
DOCUMENT = "Anna lives in Oslo, Tom in Rome."


async def post(
    engine: FakeEngine, body: Any = None, headers: Any = None, **changes: Any
) -> Client:
    app = serve(engine, **changes)
    return await Client(app, body=body or group(), headers=headers)()


def by_index(client: Client) -> dict[int, dict[str, Any]]:
    return {event["index"]: event for event in client.events if "index" in event}


# --- a group that goes well -----------------------------------------------------------


async def test_the_events_of_a_group() -> None:
    engine = FakeEngine(lambda asked: finished(asked, cached=28, round_=7))
    client = await post(engine, group(" Oslo", " Rome", group_id="g-1"))
    assert client.status == 200
    assert client.headers["content-type"] == "application/x-ndjson"
    assert "content-length" not in client.headers
    started, *branches, completed = client.events
    assert started == {
        "event": "group.started",
        "v": 1,
        "group_id": "g-1",
        "request_id": client.headers["x-request-id"],
        "model": "fake",
        "branches": 2,
        "document_tokens": 32,
        "shared_tokens": 32,
    }
    assert [event["event"] for event in branches] == ["branch.completed"] * 2
    assert by_index(client)[1] == {
        "event": "branch.completed",
        "index": 1,
        "request_id": f"{started['request_id']}-1",
        "token_ids": [ord(letter) for letter in " Rome"],
        "token_logprobs": [-ord(letter) / 1000 for letter in " Rome"],
        "token_is_top": [True] * 5,
        "labels": None,
        "usage": {"prompt_tokens": 37, "cached_tokens": 28, "computed_tokens": 9},
        "rounds": {"first": 7, "last": 7, "blocked": 0},
    }
    assert completed == {
        "event": "group.completed",
        "completed": 2,
        "failed": 0,
        "usage": {
            "prompt_tokens": 74,
            "cached_tokens": 56,
            "computed_tokens": 18,
            "rounds": 1,
        },
        "load": {"requests": 0, "rows": 8},
    }


async def test_what_the_engine_is_asked() -> None:
    engine = FakeEngine()
    body = group(" Oslo", " Rome", cache_salt="s", priority=3, group_id="g-1")
    await post(engine, body, {"X-Request-ID": "r", "X-data-parallel-rank": "1"})
    assert [asked.request_id for asked in engine.asked] == ["r-0", "r-1"]
    for asked in engine.asked:
        assert (asked.cache_salt, asked.priority, asked.rank) == ("s", 3, 1)
        assert asked.tokens[:32] == [ord(letter) for letter in DOCUMENT]
        assert asked.hints == {
            "radixflow_v": 1,
            "radixflow_group": "g-1",
            "radixflow_role": "consumer",
            "radixflow_branches": 2,
            "radixflow_boundaries": [32],
            "radixflow_scored_from": 32,
            "radixflow_internal": {"trim_rows": True},
        }


@pytest.mark.parametrize("state", [{}, {"tracestate": "vendor=1"}])
async def test_a_trace_goes_on_in_the_engine(state: dict[str, str]) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    engine = FakeEngine()
    await post(engine, headers={"Traceparent": parent, "X-Other": "no"} | state)
    for asked in engine.asked:
        assert asked.trace_headers == {"traceparent": parent} | state


async def test_without_a_trace_the_engine_is_told_of_none() -> None:
    engine = FakeEngine()
    await post(engine)
    assert [asked.trace_headers for asked in engine.asked] == [None] * 2


async def test_labels_come_as_sent() -> None:
    engine = FakeEngine()
    client = await post(engine, group("x:", scoring="label", labels=["y", 66, "y"]))
    [event] = by_index(client).values()
    assert event["labels"] == [
        {"label": "y", "token_id": 121, "logprob": -0.121},
        {"label": 66, "token_id": 66, "logprob": -0.066},
        {"label": "y", "token_id": 121, "logprob": -0.121},
    ]
    assert (event["token_ids"], event["token_logprobs"]) == ([65], [-0.065])
    assert "radixflow_scored_from" not in engine.asked[0].hints


async def test_events_come_in_the_order_of_completion() -> None:
    last_first = asyncio.Event()

    class Engine(FakeEngine):
        async def generate(self, *args: Any, **options: Any) -> Any:
            if args[2].endswith("-0"):
                await last_first.wait()
            async for output in super().generate(*args, **options):
                yield output

    client = Client(serve(Engine()), body=group(" a", " b", " c"))
    await until(lambda: client.body.count(b"branch.completed") == 2)
    assert [event.get("index") for event in client.events] == [None, 1, 2]
    last_first.set()
    await client()
    assert [event["event"] for event in client.events][-2:] == [
        "branch.completed",
        "group.completed",
    ]


async def test_a_server_with_another_scheduler() -> None:
    def plain(asked: Asked) -> Any:
        output = finished(asked)
        output.kv_transfer_params = None
        return output

    engine = FakeEngine(plain)
    route = Route(ours=False, connector=False)
    client = await post(engine, route=route)
    assert {event["rounds"] is None for event in by_index(client).values()} == {True}
    assert client.events[-1]["usage"]["rounds"] is None
    assert all(asked.params.skip_reading_prefix_cache for asked in engine.asked)


async def test_a_hit_over_a_scored_row_is_read_again_without_the_cache() -> None:
    def hit(asked: Asked) -> Any:
        skips = asked.params.skip_reading_prefix_cache
        output = finished(asked, cached=0 if skips else 32)
        if not skips and output.prompt_logprobs:
            output.prompt_logprobs[32][asked.tokens[32]].logprob = -5.0  # stale
        return output

    engine = FakeEngine(hit)
    client = await post(engine)
    assert len(engine.asked) == 4
    for event in by_index(client).values():
        assert event["token_logprobs"][0] == -0.032
        assert event["usage"]["cached_tokens"] == 0


async def test_the_v2_model_runner_is_read_by_ids_beside_the_cache() -> None:
    engine = FakeEngine()
    route = Route(ours=False, connector=False, by_ids=True)
    client = await post(engine, route=route)
    assert by_index(client)[0]["token_logprobs"] == [-ord(c) / 1000 for c in " Oslo"]
    assert by_index(client)[0]["token_is_top"] is None
    for asked in engine.asked:
        assert asked.params.prompt_logprob_start == len(DOCUMENT) - 1
        assert asked.params.skip_reading_prefix_cache is False


# --- branches of one token ------------------------------------------------------------


async def test_branches_of_one_token_are_read_from_one_row() -> None:
    engine = FakeEngine(lambda asked: finished(asked, cached=20))
    client = await post(engine, group("A", "B", "Z", "A", question="?"))
    [reader] = engine.asked
    assert reader.tokens == [ord(letter) for letter in f"{DOCUMENT}?"]
    assert reader.params.logprob_token_ids == [65, 66, 90]
    assert reader.params.prompt_logprobs is None
    events = by_index(client)
    assert [events[i]["token_logprobs"] for i in range(4)] == [
        [-0.065],
        [-0.066],
        [-0.09],
        [-0.065],
    ]
    assert [events[i]["token_ids"] for i in range(4)] == [[65], [66], [90], [65]]
    assert [events[i]["token_is_top"] for i in range(3)] == [[True], [False], [False]]
    assert [events[i]["usage"]["computed_tokens"] for i in range(4)] == [13, 0, 0, 0]
    assert client.events[-1]["usage"]["prompt_tokens"] == 4 * (len(DOCUMENT) + 2)


async def test_the_last_row_of_a_document_is_one_request() -> None:
    engine = FakeEngine()
    await post(engine, group("A", "B"))
    assert [asked.name for asked in engine.asked] == ["0"]


async def test_longer_branches_go_beside_those_of_one_token() -> None:
    engine = FakeEngine()
    client = await post(engine, group("A", " Oslo", "B", "\u0301"))
    assert [asked.name for asked in engine.asked] == ["0", "1"]
    assert client.events[-1]["completed"] == 4


async def test_one_row_is_asked_for_no_more_tokens_than_it_gives() -> None:
    engine = FakeEngine()
    route = Route(ours=True, connector=False, ids_a_read=2)
    client = await post(engine, group("A", "B", "C", "D", "E"), route=route)
    asked = {each.name: each.params.logprob_token_ids for each in engine.asked}
    assert asked == {"0": [65, 66], "2": [67, 68], "4": None}
    assert client.events[-1]["completed"] == 5


async def test_a_row_that_fails_fails_all_that_were_to_be_read_from_it() -> None:
    engine = FakeEngine(lambda asked: ended("abort"))
    client = await post(engine, group("A", "B"))
    errors = [event["error"] for event in by_index(client).values()]
    assert [error["code"] for error in errors] == ["aborted", "aborted"]


async def test_a_number_that_is_none_fails_its_own_branch_only() -> None:
    def broken(asked: Asked) -> Any:
        output = finished(asked)
        output.outputs[0].logprobs[0][66].logprob = float("-inf")
        return output

    client = await post(FakeEngine(broken), group("A", "B"))
    assert [event["event"] for event in client.events[1:3]] == [
        "branch.completed",
        "branch.failed",
    ]


# --- where prompts part ---------------------------------------------------------------


def boundaries(engine: FakeEngine) -> list[int]:
    """Those of every request, which all of them agree on."""
    first, *others = [asked.hints["radixflow_boundaries"] for asked in engine.asked]
    assert all(other == first for other in others)
    return list(first)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [32]),
        ({"question": "?" * 9}, [32, 41]),
        ({"document": {"text": DOCUMENT, "boundaries": [5, 20]}}, [5, 20, 32]),
        ({"document": {"text": DOCUMENT, "boundaries": [5, 32]}}, [5, 32]),
        ({"document": {"token_ids": [*range(65, 75)], "boundaries": [3]}}, [3, 10]),
        ({"branches": [{"text": " one"}]}, [32]),
        ({"branches": [{"text": "A"}, {"text": "B"}]}, [32]),
        ({"branches": [{"text": "A"}, {"text": "B"}, {"text": "Oslo"}]}, [32]),
        (
            {
                "document": {
                    "messages": [
                        {"role": "system", "content": "Be brief."},
                        {"role": "user", "content": "Hi"},
                        {"role": "user", "content": "Where?"},
                    ]
                }
            },
            [len("system: Be brief.\nuser: "), 33, 39],
        ),
    ],
    ids=[
        "document",
        "question",
        "parts",
        "a part that is all",
        "token ids",
        "one branch",
        "one request",
        "two requests",
        "messages",
    ],
)
async def test_requests_say_where_their_prompts_part(
    fields: dict[str, Any], expected: list[int]
) -> None:
    engine = FakeEngine()
    client = await post(engine, group(**fields))
    assert boundaries(engine) == expected
    assert client.events[0]["shared_tokens"] == expected[-1]
    for asked in engine.asked:
        assert asked.hints["radixflow_branches"] == len(engine.asked)


async def test_the_most_boundaries_that_a_request_has() -> None:
    engine = FakeEngine()
    text = "x" * 63
    body = group(document={"text": text, "boundaries": [*range(1, 63)]}, question="?")
    await post(engine, body)
    assert boundaries(engine) == [*range(1, 65)]


async def test_a_long_conversation_keeps_its_first_boundary_and_the_last_ones() -> None:
    engine = FakeEngine()
    turns = [{"role": "user", "content": chr(0x100 + n)} for n in range(80)]
    client = await post(
        engine, group(document={"messages": turns}), prompt_limit=10_000
    )
    length = len("user: 0\n")
    ends = [at + len("user: ") for at in range(length, 80 * length, length)]
    shared = client.events[0]["shared_tokens"]
    assert boundaries(engine) == [ends[0], *ends[-61:], shared]


# --- branches that fail ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "code", "retryable"),
    [
        (ended("abort"), "aborted", True),
        (None, "aborted", True),
        (ended("error"), "engine_error", True),
        (EngineGenerateError(), "engine_error", True),
        (ValueError("odd"), "engine_error", True),
        (EngineDeadError(), "engine_dead", True),
        ("short", "missing_logprob", False),
        ("nan", "non_finite_logprob", False),
    ],
    ids=["abort", "cut", "error", "generate", "value", "dead", "short", "nan"],
)
async def test_one_branch_fails_and_the_others_do_not(
    answer: Any, code: str, retryable: bool
) -> None:
    def spoilt(asked: Asked) -> Any:
        if asked.name != "1":
            return finished(asked)
        if not isinstance(answer, str):
            return answer
        output = finished(asked)
        if answer == "short":
            output.prompt_logprobs = output.prompt_logprobs[-2:]
        else:
            output.prompt_logprobs[-1][asked.tokens[-1]].logprob = float("nan")
        return output

    client = await post(FakeEngine(spoilt), group(" a a", " b b", " c c"))
    assert client.status == 200
    failed = by_index(client)[1]
    assert failed["event"] == "branch.failed"
    assert failed["error"]["code"] == code
    assert failed["error"]["retryable"] is retryable
    assert failed["error"]["message"]
    assert failed["request_id"] == f"{client.headers['x-request-id']}-1"
    summary = client.events[-1]
    assert (summary["completed"], summary["failed"]) == (2, 1)
    assert summary["usage"]["prompt_tokens"] == 2 * 36


async def test_an_engine_that_is_gone_answers_503() -> None:
    client = await post(FakeEngine(errored=True))
    assert (client.status, client.error["code"]) == (503, "engine_dead")


# --- adapters -------------------------------------------------------------------------


async def test_an_adapter_is_served_and_a_reload_reads_no_block_of_the_last_load() -> (
    None
):
    engine = FakeEngine()
    app = serve(engine)
    loaded: dict[str, Any] = {}
    app.state.openai_serving_models = SimpleNamespace(lora_requests=loaded)
    body = group(" a", model="style")
    refused = await Client(app, body=body)()
    assert (refused.status, refused.error["code"]) == (404, "model_not_found")
    salts = []
    for _ in range(2):
        loaded["style"] = LoRARequest("style", 1, "/same/path")
        for salt in (None, None, "tenant"):
            asked = await Client(app, body={**body, "cache_salt": salt})()
            assert asked.events[0]["model"] == "style"
            assert engine.asked[-1].lora is loaded["style"]
            salts.append(engine.asked[-1].cache_salt)
    # One namespace for each load and salt, none of them a client's own.
    assert salts[0] == salts[1]
    assert salts[3] == salts[4]
    assert len({*salts, None, "tenant"}) == 6
    await Client(app, body=group(" a"))()
    assert (engine.asked[-1].lora, engine.asked[-1].cache_salt) == (None, None)


# --- operators ------------------------------------------------------------------------

OPERATORS = [
    ("GET", "/v1/radixflow/rounds"),
    ("GET", "/v1/radixflow/groups"),
    ("GET", "/v1/radixflow/arrivals"),
    ("GET", "/v1/radixflow/trace"),
    ("POST", "/v1/radixflow/policy"),
]


@pytest.mark.parametrize(("method", "path"), OPERATORS)
@pytest.mark.parametrize(
    "key", [None, "Bearer of-clients", "bearer", "Basic admin", "Bearer admin\xe9"]
)
async def test_what_operators_alone_need_wants_the_admin_key(
    method: str, path: str, key: str | None
) -> None:
    headers = {} if key is None else {"Authorization": key}
    app = serve(FakeEngine(), admin_key="admin")
    client = await Client(app, method, path, headers=headers)()
    assert (client.status, client.error["code"]) == (403, "operators_only")
    assert "admin\xe9" not in client.body.decode()


@pytest.mark.parametrize(("method", "path"), OPERATORS)
async def test_operators_pass_with_the_admin_key(method: str, path: str) -> None:
    nothing = {
        "radixflow_rounds": {"rounds": [], "newest": 0},
        "radixflow_arrivals": {"arrivals": [], "next": 0, "end": 0, "dropped": 0},
    }
    app = serve(FakeEngine(utilities=nothing), admin_key="admin")
    headers = {"Authorization": "Bearer admin"}
    client = await Client(app, method, path, headers=headers)()
    assert client.status == (422 if method == "POST" else 200)  # no policy is named


async def test_clients_need_no_admin_key() -> None:
    app = serve(FakeEngine(), admin_key="admin")
    assert (await Client(app, body=group())()).status == 200
    assert "admin" not in repr(app.state.radixflow)


# --- clients that go away, or are slow ------------------------------------------------


async def test_a_client_that_goes_away_aborts_every_branch() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    app = serve(engine)
    many = [f" {number}" for number in range(BRANCHES_IN_FLIGHT + 50)]
    client = Client(app, body=group(*many))
    await until(lambda: len(engine.running) == BRANCHES_IN_FLIGHT)
    assert app.state.radixflow.load.requests == BRANCHES_IN_FLIGHT
    client.go_away()
    await client()
    assert not engine.running
    assert app.state.radixflow.load.requests == 0
    assert len(engine.aborted) == BRANCHES_IN_FLIGHT
    assert len(engine.asked) == BRANCHES_IN_FLIGHT
    engine.gate.set()
    again = await Client(app, body=group(" a", " b"))()
    assert again.events[-1]["completed"] == 2


async def test_a_window_bounds_what_large_groups_have_in_the_engine() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    app = serve(engine, load=Load(8, Window(tokens=160, requests=8, rounds=2)))
    many = [f" {number}" for number in range(200)]
    large = [Client(app, body=group(*many, cache_salt=salt)) for salt in "ab"]
    await until(lambda: app.state.radixflow.load.requests == 400)
    assert len(engine.running) == 16
    # A small group enters all the same, and a client that goes away gives its turns up.
    small = Client(app, body=group(" a", " b", cache_salt="c"))
    await until(lambda: len(engine.running) == 18)
    large[0].go_away()
    await large[0]()
    await until(lambda: len(engine.running) == 18)
    assert {asked.cache_salt for asked in engine.asked[-8:]} == {"b"}
    engine.gate.set()
    for client, branches in ((large[1], 200), (small, 2)):
        await client()
        assert client.events[-1]["completed"] == branches
    assert app.state.radixflow.load.requests == 0
    assert app.state.radixflow.load.window.waiting == 0


async def test_a_slow_reader_keeps_no_place_in_the_engine() -> None:
    engine = FakeEngine()
    app = serve(engine, load=Load(8, Window(tokens=160, requests=8, rounds=2)))
    many = [f" {number}" for number in range(600)]
    slow = Client(app, body=group(*many), reading=False)
    await until(lambda: len(engine.asked) >= BRANCHES_IN_FLIGHT)
    other = await Client(app, body=group(*many[:100]))()
    assert other.events[-1]["completed"] == 100
    slow.reading.set()
    await slow()
    assert slow.events[-1]["completed"] == 600


@pytest.mark.parametrize(
    ("salt", "key", "tenant"),
    [
        ("s", "Bearer k", ("salt", "s")),
        (None, "Bearer k", ("key", "Bearer k")),
        (None, None, ("key", "")),
    ],
)
async def test_a_tenant_is_a_salt_or_else_an_api_key(
    salt: str | None, key: str | None, tenant: tuple[str, str]
) -> None:
    engine = FakeEngine()
    engine.gate.clear()
    app = serve(engine)
    headers = {} if key is None else {"Authorization": key}
    client = Client(app, body=group(" a", cache_salt=salt), headers=headers)
    await until(lambda: app.state.radixflow.groups.running == 1)
    running = next(iter(app.state.radixflow.groups._running.values()))[0]
    assert running.tenant == tenant
    engine.gate.set()
    await client()


async def test_a_client_that_goes_away_before_the_answer_begins() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    client = Client(serve(engine), body=group())
    client.go_away()
    await client()
    assert not engine.running


async def test_a_slow_reader_holds_its_group_back_and_no_other() -> None:
    engine = FakeEngine()
    app = serve(engine)
    many = [f" {number}" for number in range(1000)]
    slow = Client(app, body=group(*many), reading=False)
    ceiling = BRANCHES_IN_FLIGHT + router_module.EVENTS_WAITING
    await until(lambda: len(engine.asked) >= BRANCHES_IN_FLIGHT)
    quick = await Client(app, body=group(" a", " b"))()
    assert quick.events[-1]["completed"] == 2
    assert len(engine.asked) - 2 <= ceiling + 2
    slow.reading.set()
    await slow()
    assert slow.events[-1]["completed"] == 1000
    assert sorted(by_index(slow)) == list(range(1000))


async def test_a_slow_reader_that_goes_away_is_no_error() -> None:
    app = serve(FakeEngine())
    many = [f" {number}" for number in range(1000)]
    client = Client(app, body=group(*many), reading=False)
    groups = app.state.radixflow.groups
    enough = router_module.EVENTS_WAITING + 2  # some of them wait to be taken
    await until(lambda: groups.running and _ended(groups) >= enough)
    client.go_away()
    await client()  # and raises nothing
    assert groups.running == 0


def _ended(groups: Any) -> int:
    [shown] = groups.as_dict()["groups"]
    return int(shown["completed"])


async def test_groups_under_one_request_id_do_not_meet() -> None:
    app = serve(FakeEngine())
    clients = [
        Client(app, body=group(), headers={"X-Request-ID": "same"}) for _ in range(4)
    ]
    for client in clients:
        assert (await client()).events[-1]["completed"] == 2


# --- headers, bodies, models ----------------------------------------------------------


@pytest.mark.parametrize("given", ["r", "A-Za-z0-9._:-", "x" * 128])
async def test_a_request_id_is_echoed(given: str) -> None:
    client = await post(FakeEngine(), headers={"X-Request-ID": given})
    assert client.headers["x-request-id"] == given
    assert client.events[0]["request_id"] == given


@pytest.mark.parametrize("given", [None, "", "a b", "x" * 129, "é", "a\n"])
async def test_another_request_id_is_replaced(given: str | None) -> None:
    headers = {} if given is None else {"X-Request-ID": given}
    client = await post(FakeEngine(), headers=headers)
    assert client.headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize("given", ["2", "-1", "", "one", "1.0", "²", "9" * 5000])
async def test_a_rank_that_is_none(given: str) -> None:
    client = await post(FakeEngine(), headers={"X-data-parallel-rank": given})
    assert (client.status, client.error["code"]) == (422, "invalid_request")
    assert client.error["field"] == "X-data-parallel-rank"
    assert len(client.error["message"]) < 200


async def test_other_requests_go_on_while_a_large_body_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, answered = threading.Event(), threading.Event()

    def slow(body: bytes, *, limit: int) -> BranchesRequest:
        if len(body) > router_module.LARGE_BODY:
            begun.set()
            assert answered.wait(20)  # for what only the event loop can bring
        return parse_request(body, limit=limit)

    monkeypatch.setattr(router_module, "parse_request", slow)
    app = serve(FakeEngine(), prompt_limit=2**17)
    large = Client(app, body=group(document={"text": "x" * 2**16}))
    await until(begun.is_set)
    assert (await Client(app, "GET", "/v1/radixflow/groups")()).status == 200
    small = Client(app, body={"document": {}})  # refused, and read at once
    assert (await small()).status == 422
    answered.set()
    assert (await large()).status == 200


async def test_a_body_over_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    monkeypatch.setattr(router_module, "MAX_BODY", 1000)
    body = json.dumps(group()).encode()
    exact = body[:-1] + b" " * (1000 - len(body)) + b"}"
    assert (await Client(serve(engine), body=exact)()).status == 200
    client = await Client(serve(engine), body=exact + b" ")()
    assert (client.status, client.error["code"]) == (413, "body_too_large")
    assert "1000 bytes" in client.error["message"]


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        (b"{", 400, "invalid_json", None),
        (group(question="\0"), 400, "invalid_json", "question"),
        (group(branches=[]), 422, "invalid_request", "branches"),
        (group(model="gpt"), 404, "model_not_found", "model"),
        (
            group(branches=[{"token_ids": [2**20]}]),
            422,
            "token_out_of_range",
            "branches.0.token_ids",
        ),
        (
            group(scoring="label", labels=["yes"]),
            422,
            "label_not_one_token",
            "labels.0",
        ),
        (group(" " + "x" * LIMIT), 422, "context_too_long", "branches.0"),
        (
            group(scoring="label", labels=list(range(21))),
            422,
            "invalid_request",
            "labels",
        ),
    ],
    ids=["JSON", "NUL", "fields", "model", "token", "label", "long", "labels"],
)
async def test_an_error_before_the_stream(
    body: Any, status: int, code: str, field: str | None
) -> None:
    engine = FakeEngine()
    client = await post(engine, body)
    assert client.status == status
    assert client.headers["content-type"] == "application/json"
    assert client.error.keys() == {"code", "message", "field", "type"}
    assert (client.error["code"], client.error["field"]) == (code, field)
    assert client.error["type"] == "radixflow_error"
    assert not engine.asked


async def test_a_group_has_a_rank_of_its_documents_own() -> None:
    """All its branches; with one rank there is nothing to choose."""

    async def ranks(number: int, salt: str | None = None, **changes: Any) -> set[Any]:
        engine = FakeEngine()
        text = f"{number}. {DOCUMENT}"
        body = group(document={"text": text}, question="?" * number, cache_salt=salt)
        await post(engine, body, **changes)
        assert len(engine.asked) == 2
        return {asked.rank for asked in engine.asked}

    homes = [await ranks(number) for number in range(12)]
    assert all(len(home) == 1 for home in homes)
    assert set.union(*homes) == {0, 1}
    assert [await ranks(number) for number in range(12)] == homes
    salted = [await ranks(number, "s") for number in range(12)]
    assert salted != homes
    assert await ranks(0, ranks=1) == {None}


async def test_an_unknown_model_is_told_the_served_ones() -> None:
    client = await post(FakeEngine(), group(model="gpt"))
    assert "'gpt'" in client.error["message"]
    assert "fake, other-name" in client.error["message"]
    long = await post(FakeEngine(), group(model="g" * 2**20))
    assert (long.status, len(long.body) < 500) == (404, True)
    assert (await post(FakeEngine(), group(model="other-name"))).events[0][
        "model"
    ] == "other-name"


async def test_a_server_that_cannot_give_exact_rows() -> None:
    client = await post(FakeEngine(), unsupported="--logprobs-mode is raw_logits")
    assert (client.status, client.error["code"]) == (501, "unsupported")


async def test_messages() -> None:
    engine = FakeEngine()
    messages = [{"role": "user", "content": DOCUMENT}]
    client = await post(engine, group(document={"messages": messages}))
    assert client.events[-1]["completed"] == 2
    rendered = f"user: {DOCUMENT}\n Oslo"
    assert engine.asked[0].tokens == [ord(letter) for letter in rendered]


# --- stats and policy -----------------------------------------------------------------


async def test_stats_of_our_scheduler() -> None:
    snapshot = {
        "vllm_version": "0.32.0",
        "scheduler": "RadixFlowScheduler",
        "policy": {"name": "radix"},
        "settings": {"rows": 4},
        "counters": {"rounds": 3},
        "gauges": {"running": 0, "waiting": 0},
        "engine": {"model_runner": "V2", "workers": [["block_copy"]]},
    }
    engine = FakeEngine(utilities={"radixflow_snapshot": snapshot})
    client = await Client(serve(engine), "GET", "/v1/radixflow/stats")()
    answer = json.loads(client.body)
    assert answer.pop("v") == 1
    assert answer.pop("version")
    assert answer == snapshot


async def test_stats_of_another_scheduler() -> None:
    engine = FakeEngine(utilities={"radixflow_snapshot": {"scheduler": "Scheduler"}})
    client = await Client(serve(engine), "GET", "/v1/radixflow/stats")()
    answer = json.loads(client.body)
    assert answer["scheduler"] == "Scheduler"
    for name in ("policy", "settings", "counters", "gauges", "vllm_version"):
        assert answer[name] is None


async def test_stats_of_a_dead_engine() -> None:
    engine = FakeEngine(utilities={"radixflow_snapshot": EngineDeadError()})
    client = await Client(serve(engine), "GET", "/v1/radixflow/stats")()
    assert (client.status, client.error["code"]) == (503, "engine_dead")


async def test_arrivals_of_our_scheduler() -> None:
    kept = {"dropped": 0, "arrivals": [{"name": "r", "after": 0}]}
    page = {**kept, "next": 1, "end": 1}
    engine = FakeEngine(utilities={"radixflow_arrivals": lambda after, start: page})
    client = await Client(serve(engine), "GET", "/v1/radixflow/arrivals")()
    assert json.loads(client.body) == {"v": 1, **kept}


async def test_another_scheduler_keeps_no_arrivals() -> None:
    engine = FakeEngine(utilities={"radixflow_arrivals": None})
    client = await Client(serve(engine), "GET", "/v1/radixflow/arrivals")()
    assert (client.status, client.error["code"]) == (501, "unsupported")


async def switch(body: Any, answer: Any = True, **changes: Any) -> Client:
    engine = FakeEngine(utilities={"radixflow_set_policy": answer})
    app = serve(engine, **changes)
    return await Client(app, path="/v1/radixflow/policy", body=body)()


async def test_switching_the_policy() -> None:
    names: list[str] = []

    def accept(name: str) -> bool:
        names.append(name)
        return True

    client = await switch({"name": "radix"}, accept)
    assert (client.status, json.loads(client.body)) == (200, {"policy": "radix"})
    assert names == ["radix"]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"3", {}, {"name": None}, {"name": "x"}, {"name": []}]
)
async def test_a_policy_that_is_none(body: Any) -> None:
    client = await switch(body)
    assert (client.status, client.error["code"]) == (422, "invalid_request")
    assert client.error["field"] == "name"
    assert "radix" in client.error["message"]


async def test_a_busy_server_keeps_its_policy() -> None:
    client = await switch({"name": "radix"}, lambda name: False)
    assert (client.status, client.error["code"]) == (409, "busy")


async def test_a_policy_that_cannot_run_here() -> None:
    client = await switch({"name": "radixflow"}, "--scheduling-policy is priority")
    assert (client.status, client.error["code"]) == (422, "invalid_request")
    assert client.error["message"] == "name: --scheduling-policy is priority"


async def test_another_scheduler_has_no_policy() -> None:
    route = Route(ours=False, connector=False)
    client = await switch({"name": "radix"}, route=route)
    assert (client.status, client.error["code"]) == (501, "unsupported")
