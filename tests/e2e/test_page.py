"""The live page's sources on a real server, with and without its key."""

import httpx
import pytest

from tests.e2e.loads import loads
from tests.e2e.served import Served

pytestmark = pytest.mark.server


def test_the_page_is_public_and_its_figures_are_not(server: Served, salt: str) -> None:
    load = loads()[0]
    server.group(load.document, load.branches, cache_salt=salt)
    with httpx.Client(base_url=server.url) as stranger:
        page = stranger.get("/radixflow")
        assert page.status_code == 200
        assert "script-src 'sha256-" in page.headers["content-security-policy"]
        for path in ("stats", "rounds", "groups"):
            assert stranger.get(f"/v1/radixflow/{path}").status_code == 401
    told = server.http.get("/v1/radixflow/groups").json()
    assert told["groups"][0]["state"] == "ended"
    assert told["groups"][0]["completed"] == len(load.branches)
    last = server.http.get("/v1/radixflow/rounds").json()["rounds"][-1]
    assert last.keys() >= {"number", "scheduled", "blocked", "parked", "held", "woken"}
