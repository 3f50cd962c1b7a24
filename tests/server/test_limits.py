"""What a server takes and how long it waits: on real sockets, against bad senders."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

pytest.importorskip("vllm")

from server_ext.api import router as router_module
from tests.server.fake_engine import FakeEngine, group, serve
from tests.server.sockets import listening

GOOD = json.dumps(group()).encode()
HEAD = b"POST /v1/branches HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def url(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that takes 1,000 bytes and waits for half a second."""
    monkeypatch.setattr(router_module, "MAX_BODY", 1000)
    monkeypatch.setattr(router_module, "BODY_SECONDS", 0.5)
    with listening(serve(engine)) as url:
        yield url


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        yield connection


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """Status and body, read until the server closes the connection."""
    read = b""
    while more := connection.recv(2**16):
        read += more
    head, _, body = read.partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head.lower()
    return int(head.split()[1]), body


def told(connection: socket.socket) -> tuple[int, str]:
    status, body = answer(connection)
    return status, json.loads(body)["error"]["code"]


def well(url: str) -> bool:
    with connected(url) as connection:
        length = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(GOOD)
        connection.sendall(HEAD + length + GOOD)
        status, body = answer(connection)
        return status == 200 and b"group.completed" in body


def test_a_body_that_drips_is_refused_and_its_connection_closed(
    url: str, engine: FakeEngine
) -> None:
    began = time.monotonic()
    with connected(url) as connection:
        connection.sendall(HEAD + b"Content-Length: 900\r\n\r\n" + GOOD[:10])
        assert told(connection) == (408, "body_too_slow")
    assert 0.4 < time.monotonic() - began < 15
    assert not engine.asked
    assert well(url)


def test_a_body_whose_told_length_is_too_large_is_not_waited_for(url: str) -> None:
    for length in (b"1001", b"9" * 18):
        with connected(url) as connection:
            connection.sendall(HEAD + b"Content-Length: " + length + b"\r\n\r\n")
            assert told(connection) == (413, "body_too_large")


def test_a_body_without_a_length_is_read_up_to_the_limit(url: str) -> None:
    with connected(url) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(3):
            connection.sendall(b"190\r\n" + b"x" * 0x190 + b"\r\n")
        assert told(connection) == (413, "body_too_large")


def test_a_policy_is_small(url: str) -> None:
    head = HEAD.replace(b"branches", b"radixflow/policy")
    with connected(url) as connection:
        connection.sendall(head + b"Content-Length: 4097\r\n\r\n")
        assert told(connection) == (413, "body_too_large")


def test_a_client_that_goes_away_in_its_body_leaves_no_trace(
    url: str, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            with connected(url) as connection:
                connection.sendall(HEAD + b"Content-Length: 900\r\n\r\n" + GOOD[:10])
        assert well(url)
    assert [asked.name for asked in engine.asked] == ["0", "1"]
    assert not caplog.records


def test_slow_bodies_do_not_keep_others_waiting(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router_module, "BODY_SECONDS", 15.0)
    with ExitStack() as stack:
        slow = [stack.enter_context(connected(url)) for _ in range(100)]
        for connection in slow:
            connection.sendall(HEAD + b"Content-Length: 900\r\n\r\n" + GOOD[:10])
        began = time.monotonic()
        assert well(url)
        assert time.monotonic() - began < 10  # none of theirs is over


def test_more_branches_than_the_wire_allows_are_refused_before_any_runs(
    engine: FakeEngine,
) -> None:
    many = json.dumps(group(*["x"] * 4097)).encode()
    with listening(serve(engine)) as url, connected(url) as connection:
        length = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(many)
        connection.sendall(HEAD + length + many)
        status, body = answer(connection)
    assert (status, json.loads(body)["error"]["field"]) == (422, "branches")
    assert not engine.asked


@pytest.mark.parametrize(
    "declared",
    [
        b"text/plain",
        b"text/plain; application/json",
        b"application/x-www-form-urlencoded",
        b"multipart/form-data; boundary=x",
        b"application/jsonp",
        b"x" * 5000,
        None,
    ],
    ids=["text", "text that says JSON", "form", "parts", "like it", "long", "nothing"],
)
@pytest.mark.parametrize("route", [b"branches", b"radixflow/policy"])
def test_what_a_web_page_may_send_unasked_is_refused(
    url: str, engine: FakeEngine, route: bytes, declared: bytes | None
) -> None:
    line = b"" if declared is None else b"Content-Type: " + declared + b"\r\n"
    head = b"POST /v1/" + route + b" HTTP/1.1\r\nHost: x\r\n" + line
    with connected(url) as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(GOOD))
        assert told(connection) == (415, "unsupported_media_type")
    assert not engine.asked


@pytest.mark.parametrize(
    "declared", [b"application/json; charset=utf-8", b"Application/JSON "]
)
def test_json_by_any_spelling_is_taken(url: str, declared: bytes) -> None:
    head = HEAD.replace(b"application/json", declared)
    length = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(GOOD)
    with connected(url) as connection:
        connection.sendall(head + length + GOOD)
        assert answer(connection)[0] == 200


def test_nesting_that_no_parser_should_follow_is_refused(url: str) -> None:
    deep = b"[" * 1000
    with connected(url) as connection:
        length = b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(deep)
        connection.sendall(HEAD + length + deep)
        assert told(connection) == (400, "invalid_json")
