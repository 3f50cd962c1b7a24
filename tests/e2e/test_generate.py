"""Branches that go on, on the real server."""

import asyncio
from typing import Any

import pytest

from radixflow_sdk import InvalidRequestError, RadixFlowClient, RetryPolicy
from tests.e2e.loads import loads
from tests.e2e.served import KEY, Served

pytestmark = [pytest.mark.server, pytest.mark.asyncio]


def connect(server: Served, salt: str, **changes: Any) -> RadixFlowClient:
    return RadixFlowClient(
        server.url,
        api_key=KEY,
        retry=RetryPolicy(attempts=1),
        timeout=120.0,
        cache_salt=salt,
        **changes,
    )


def branches() -> tuple[str, list[str]]:
    load = loads()[5]
    ask = f"\n\nQuestion: {load.question}\nAnswer:"
    return load.document, [ask, *(f"{ask} {option}" for option in load.options)]


async def test_the_likeliest_tokens_are_those_of_a_plain_completion(
    server: Served, salt: str
) -> None:
    document, asked = branches()
    before = server.counters()
    async with connect(server, salt) as client:
        result = await client.generate_branches(document, asked, max_tokens=8)
    seen = {name: server.counters()[name] - before[name] for name in before}
    assert seen["hints"] == len(asked)
    assert seen["hints_ignored"] == 0
    for branch in result.branches:
        # One by one, each without the cache of the others.
        body = {"prompt": document + str(branch.branch), "max_tokens": 8}
        plain = server.post(
            {**body, "temperature": 0, "cache_salt": f"{salt}-{branch.index}"},
            "/v1/completions",
        )
        [choice] = plain.json()["choices"]
        assert (branch.text, branch.finish_reason) == (
            choice["text"],
            choice["finish_reason"],
        )
        usage = plain.json()["usage"]
        assert branch.prompt_tokens == usage["prompt_tokens"]
        assert branch.generated_tokens == usage["completion_tokens"]
    # All but the first resume inside the document.
    cached, prompts = seen["cached_tokens"], seen["prompt_tokens"]
    assert cached >= (len(asked) - 1) * (result.shared_tokens - 32)
    assert prompts == result.prompt_tokens


async def test_chats_stops_and_token_ids(server: Served, salt: str) -> None:
    document, asked = branches()
    chat = [{"role": "user", "content": document}]
    async with connect(server, salt) as client:
        spoken = await client.generate_branches(chat, ["Who?", "Where?"], max_tokens=4)
        assert 0 < spoken.shared_tokens < spoken.branches[0].prompt_tokens
        ids = await client.generate_branches([5, 6, 7], [[8], [9]], max_tokens=3)
        assert [branch.prompt_tokens for branch in ids.branches] == [4, 4]
        whole = await client.generate_branches(document, asked[:1], max_tokens=8)
        text = whole.branches[0].text
        end = text.strip()[-1]
        cut = await client.generate_branches(
            document, asked[:1], max_tokens=8, stop=[end]
        )
    assert cut.branches[0].text == text[: text.index(end)]
    assert cut.branches[0].finish_reason == "stop"


async def test_what_does_not_fit_is_refused(server: Served, salt: str) -> None:
    async with connect(server, salt) as client:
        with pytest.raises(InvalidRequestError):
            await client.generate_branches("a " * 5000, ["b"], max_tokens=2)


async def test_leaving_aborts_every_branch_in_the_engine(
    server: Served, salt: str
) -> None:
    document, asked = branches()
    async with connect(server, salt) as client:
        # Else the model ends its texts within the time that a look takes.
        going_on = client.with_options(extra_body={"ignore_eos": True})
        call = asyncio.create_task(
            going_on.generate_branches(document, asked * 4, max_tokens=2000)
        )
        while not await asyncio.to_thread(server.in_flight):
            assert not call.done()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.to_thread(server.wait_until_idle, 30)
