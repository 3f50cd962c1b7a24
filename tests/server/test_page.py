"""The live page: what it says, whom it lets in, and what a browser makes of it."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from fastapi.testclient import TestClient
from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware
from vllm.v1.engine.exceptions import EngineDeadError

from server_ext.api import page
from server_ext.api.plugin import RadixFlowEndpoints
from server_ext.api.progress import ENDED, SHOWN, Groups
from server_ext.policy.config import ConfigurationError, page_wanted
from server_ext.policy.counters import Counters, Round
from server_ext.serve import vllm_arguments
from tests.server.fake_engine import Client, FakeEngine, group, serve, until
from tests.server.sockets import listening

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
KEY = "a-key-of-the-tests"
EVIL = "<img src=x onerror=document.body.dataset.evil=1>"
TEXT = Path(page.__file__).with_name("page.html").read_text("utf-8")


def snapshot(rounds: int = 300) -> dict[str, Any]:
    counters = Counters(rounds=rounds, rows=1200, tokens=9000, prompt_tokens=40_000)
    counters.cached_tokens, counters.blocked, counters.woken = 30_000, 80, 79
    gauges = dict.fromkeys(("running", "waiting", "held", "parked"), 7)
    return {
        "vllm_version": "0.32.0",
        "scheduler": "RadixFlowScheduler",
        "policy": {"name": "radixflow+"},
        "settings": {"rows": 16},
        "counters": counters.as_dict() | {"held": 0, "overtakes": 0},
        "gauges": gauges | {"oldest_blocked_s": 0.25, "longest_hold_s": 0.0},
    }


def rounds(after: int, most: int = 300) -> dict[str, Any]:
    kept = [
        Round(
            number=number,
            at=number / 10,
            host_us=200,
            scheduled={f"{EVIL}{row}": 30 for row in range(1 + number % 12)},
            blocked=(EVIL,) * (number % 5),
            running=6,
            waiting=9,
            recovered_rows=number % 4,
            parked=number % 7,
        ).as_dict()
        for number in range(after + 1, 301)
    ][:most]
    return {"rounds": kept, "newest": after + len(kept)}


def app(**utilities: Any) -> FastAPI:
    """A server with the page, in front of a scheduler that has run 300 rounds."""
    answers = {"radixflow_snapshot": snapshot(), "radixflow_rounds": rounds}
    built = serve(FakeEngine(utilities=answers | utilities))
    built.include_router(page.router)
    groups: Groups = built.state.radixflow.groups
    for number in range(3):
        fake: Any = SimpleNamespace(
            group_id=f"{EVIL}{number}",
            request_id=EVIL,
            prompts=SimpleNamespace(branches=[0] * 8),
            progress=lambda number=number: {"completed": 2 * number, "failed": 1},
        )
        groups._running[number] = (fake, groups.clock() - number)
    return built


# --- off, on, and what is in it -------------------------------------------------------


@pytest.mark.parametrize("wanted", [None, "0", "1"])
def test_it_is_off_unless_enabled(
    wanted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RADIXFLOW_PAGE", raising=False)
    if wanted is not None:
        monkeypatch.setenv("RADIXFLOW_PAGE", wanted)
    built = FastAPI()
    RadixFlowEndpoints().attach_router(built)
    status = TestClient(built).get("/radixflow").status_code
    assert status == (200 if wanted == "1" else 404)


def test_the_launcher_takes_the_flag_and_refuses_nonsense() -> None:
    words, environment = vllm_arguments(["m", "--page", "--port", "1"], {})
    assert "--page" not in words
    assert environment["RADIXFLOW_PAGE"] == "1"
    assert "RADIXFLOW_PAGE" not in vllm_arguments(["m"], {})[1]
    with pytest.raises(ConfigurationError, match="RADIXFLOW_PAGE is 'yes'"):
        vllm_arguments(["m"], {"RADIXFLOW_PAGE": "yes"})
    assert page_wanted({"RADIXFLOW_PAGE": ""}) is False


def test_it_loads_nothing_from_anywhere() -> None:
    assert re.findall(r"https?://[^\"]+", TEXT) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<(link|img|iframe|script )|\bsrc=|url\(|@import", TEXT)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write", TEXT)


@pytest.mark.asyncio
async def test_only_its_own_script_may_run() -> None:
    client = await Client(app(), "GET", "/radixflow")()
    assert client.status == 200
    assert client.body.decode() == TEXT
    policy = client.headers["content-security-policy"]
    [script] = re.findall(r"<script>(.*?)</script>", TEXT, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert client.headers["cache-control"] == "no-store"


# --- the key --------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["stats", "rounds", "groups", "arrivals", "trace"])
async def test_all_that_it_shows_needs_the_key(path: str) -> None:
    built = app(radixflow_arrivals={"arrivals": [], "dropped": 0, "next": 0, "end": 0})
    built.add_middleware(AuthenticationMiddleware, tokens=[KEY])
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer other"}, 401),
        ({"Authorization": f"Bearer {KEY}"}, 200),
    ):
        client = await Client(built, "GET", f"/v1/radixflow/{path}", headers=headers)()
        assert client.status == status
    assert (await Client(built, "GET", "/radixflow")()).body.decode() == TEXT


# --- how far the groups are -----------------------------------------------------------


@pytest.mark.asyncio
async def test_the_progress_of_a_group() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    built = serve(engine)
    groups: Groups = built.state.radixflow.groups
    client = Client(built, body=group(" a", " b", group_id="g-1"))
    gone = Client(built, body=group(" a", " b", group_id="g-2"))
    await until(lambda: len(groups.as_dict()["groups"]) == 2)
    gone.go_away()
    await gone()
    told = groups.as_dict()
    assert told["running"] == 1
    assert [(one["group_id"], one["state"]) for one in told["groups"]] == [
        ("g-1", "running"),
        ("g-2", "aborted"),
    ]
    engine.gate.set()
    await client()
    [one, _] = groups.as_dict()["groups"]
    assert one["seconds"] >= 0
    assert one | {"seconds": 0} == {
        "group_id": "g-1",
        "request_id": client.headers["x-request-id"],
        "branches": 2,
        "completed": 2,
        "failed": 0,
        "seconds": 0,
        "state": "ended",
    }


def test_what_is_shown_of_groups_is_bounded() -> None:
    fake: Any = SimpleNamespace(
        group_id="g",
        request_id="r",
        prompts=SimpleNamespace(branches=[0]),
        progress=lambda: {"completed": 1, "failed": 0},
    )
    groups = Groups()
    for _ in range(ENDED + 5):
        with groups.under_way(fake):
            pass
    groups._running = dict.fromkeys(range(SHOWN + 5), (fake, 0.0))
    told = groups.as_dict()
    assert told["running"] == SHOWN + 5
    assert len(told["groups"]) == SHOWN + ENDED


# --- in a browser ---------------------------------------------------------------------

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--window-size=1180,1060",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
    "--virtual-time-budget=6000",
)
HOVER = (
    "setTimeout(() => document.querySelectorAll('#rounds [data-round]')[9]?.firstChild"
    ".dispatchEvent(new MouseEvent('mousemove', {bubbles: true})), 3500);"
)


def drawn(url: str, *flags: str) -> str:
    """The page's elements after six seconds of its own time."""
    assert CHROMIUM is not None
    return subprocess.run(
        [CHROMIUM, *FLAGS, *flags, "--dump-dom", url],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout


@contextmanager
def driven(built: FastAPI, script: str) -> Iterator[str]:
    """The page's URL, with a hand on it: what `script` does is what a reader would."""

    @built.get("/driven")
    async def hand() -> HTMLResponse:
        return HTMLResponse(
            TEXT.replace("</body>", f"<script>{script}</script></body>")
        )

    with listening(built) as url:
        yield f"{url}/driven"


def looked(dom: str) -> int:
    found = re.search(r'data-looked="(\d+)"', dom)
    return int(found[1]) if found else 0


browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")


@browser
def test_a_browser_draws_it_again_and_again(tmp_path: Path) -> None:
    with listening(app()) as url:
        dom = drawn(f"{url}/radixflow", f"--screenshot={tmp_path / 'page.png'}")
    assert 'data-state="live"' in dom
    assert looked(dom) >= 3
    assert 'data-drawn="240"' in dom
    assert dom.count("data-round=") == 240
    assert "75.0%" in dom  # 30,000 of 40,000 tokens
    assert "80, 79" in dom
    assert dom.count("<tr") == 1 + 3
    assert "data-evil" not in dom
    assert "&lt;img src=x" in dom
    assert re.search(r'<form id="ask" hidden', dom)


@browser
def test_a_reader_without_the_key_is_asked_for_it() -> None:
    built = app()
    built.add_middleware(AuthenticationMiddleware, tokens=[KEY])
    with listening(built) as url:
        dom = drawn(f"{url}/radixflow")
    assert '<form id="ask">' in dom
    assert "<main hidden" in dom
    assert "radixflow+" not in dom


def typing(key: str) -> str:
    return (
        f"setTimeout(() => {{ document.getElementById('given').value = '{key}';"
        "document.getElementById('ask').requestSubmit(); }, 1000);"
    )


@browser
@pytest.mark.parametrize("key", [KEY, "other"])
def test_the_key_that_is_typed_in_opens_the_page(key: str) -> None:
    built = app()
    built.add_middleware(AuthenticationMiddleware, tokens=[KEY])
    with driven(built, typing(key) + HOVER) as url:
        dom = drawn(url)
    tip = dom.partition('id="tip"')[2].partition(">")[2]
    if key == KEY:
        assert re.search(r'<form id="ask" hidden', dom)
        assert tip.startswith("round 70: 11 slots")
    else:
        assert 'role="alert">The server refuses that key.<' in dom
        assert "radixflow+" not in dom


@browser
def test_another_scheduler_is_named() -> None:
    other = {"scheduler": "Scheduler"}
    with listening(app(radixflow_snapshot=other)) as url:
        dom = drawn(f"{url}/radixflow")
    assert "This server runs Scheduler: it keeps no rounds." in dom
    assert "<main hidden" in dom


@browser
def test_a_server_that_fails_and_starts_anew_begins_a_new_timeline() -> None:
    asked: list[int] = []
    failed: list[int] = []

    def few(after: int) -> dict[str, Any]:
        asked.append(after)
        return rounds(after) if len(asked) == 1 else rounds(after, most=20)

    def stats() -> dict[str, Any]:
        if asked and not failed:
            failed.append(1)
            raise EngineDeadError
        return snapshot(20 if asked else 300)

    with listening(app(radixflow_snapshot=stats, radixflow_rounds=few)) as url:
        dom = drawn(f"{url}/radixflow")
    assert failed
    assert asked[:3] == [0, 0, 20]
    assert 0 < dom.count("data-round=") < 60
    assert 'data-state="live"' in dom
