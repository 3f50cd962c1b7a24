"""The example of a web app, on a fake server."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from radixflow_sdk.testing import FakeServer, Fault

pytestmark = pytest.mark.anyio
PATH = Path(__file__).resolve().parents[2] / "examples" / "app.py"
ASKED = {"document": "Anna.", "question": "Where?", "options": ["Rome", "Oslo"]}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def module() -> Any:
    spec = importlib.util.spec_from_file_location("example_app", PATH)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture
def server() -> FakeServer:
    return FakeServer({"Oslo": -0.1, "Rome": -3.0})


@pytest.fixture
def served(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with server.listen_in_thread() as url:
        monkeypatch.setenv("RADIXFLOW_BASE_URL", url)
        yield url


async def ask(module: Any, method: str, path: str, **options: Any) -> httpx.Response:
    transport = httpx.ASGITransport(module.app)
    async with (
        module.lifespan(module.app),
        httpx.AsyncClient(transport=transport, base_url="http://app") as client,
    ):
        return await client.request(method, path, **options)


async def test_an_answer(module: Any, served: str) -> None:
    answer = await ask(module, "POST", "/answer", json=ASKED)
    assert answer.status_code == 200
    found = answer.json()
    assert found["best"] == "Oslo"
    assert sum(found["probabilities"].values()) == pytest.approx(1)


async def test_a_stream(module: Any, served: str, server: FakeServer) -> None:
    answer = await ask(module, "POST", "/stream", json=ASKED)
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert sorted(line["option"] for line in lines) == ["Oslo", "Rome"]
    server.faults += [Fault(status=422, code="invalid_request")]
    answer = await ask(module, "POST", "/stream", json=ASKED)
    assert "answered 422" in json.loads(answer.text)["error"]


async def test_failures(
    module: Any, served: str, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = await ask(module, "POST", "/answer", json=ASKED | {"options": ["a", ""]})
    assert (answer.status_code, "options[1]" in answer.json()["error"]) == (422, True)
    answer = await ask(module, "POST", "/answer", json=ASKED | {"options": ["a"]})
    assert answer.status_code == 422
    server.faults += [Fault(status=422, code="invalid_request")]
    answer = await ask(module, "POST", "/answer", json=ASKED)
    assert answer.status_code == 502
    monkeypatch.setattr(module, "SECONDS", 0.2)
    server.faults += [Fault(delay=30)]
    answer = await ask(module, "POST", "/answer", json=ASKED)
    assert answer.status_code == 504


async def test_health(
    module: Any, served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = await ask(module, "GET", "/health")
    assert (answer.status_code, answer.json()["models"]) == (200, ["fake"])
    monkeypatch.setenv("RADIXFLOW_BASE_URL", "http://127.0.0.1:9")
    answer = await ask(module, "GET", "/health")
    assert (answer.status_code, answer.json()["ok"]) == (503, False)
