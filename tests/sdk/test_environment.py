"""What the environment tells httpx: taken, or refused by the variable's name."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from radixflow_sdk import InvalidInputError, RadixFlow, RadixFlowClient
from radixflow_sdk._config import read_network_variables

JUNK = Path(__file__)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in read_network_variables():
        monkeypatch.delenv(name)


@pytest.mark.parametrize("make", [RadixFlow, RadixFlowClient])
@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "https://host"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("no_proxy", "localhost,[::1]"),
        ("NO_PROXY", "[::1]"),
        ("ALL_PROXY", "socks5://localhost:1080"),
        ("all_proxy", "foo://localhost:1"),
        ("HTTPS_PROXY", "http://host:port"),
        ("HTTP_PROXY", "ftp://host"),
        ("SSL_CERT_FILE", "/nowhere/certificates.pem"),
        ("SSL_CERT_FILE", str(JUNK)),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(
    make: type, url: str, name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInputError) as caught:
        make(url)
    error = caught.value
    assert error.field == name
    assert str(error).startswith(f"{name} is {value!r}; ")
    assert "server runs" not in str(error)
    assert error.__cause__ is None


def test_a_proxys_password_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "foo://me:secret@localhost:1")
    with pytest.raises(InvalidInputError, match=re.escape("foo://***@localhost")) as it:
        RadixFlowClient("http://host")
    assert "secret" not in f"{it.value!r} {it.value.value!r}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("no_proxy", "localhost,::1,.example.com,10.0.0.0/8"),
        ("ALL_PROXY", "http://localhost:3128"),
        ("HTTP_PROXY", "localhost:3128"),
        ("SSL_CERT_DIR", "/nowhere"),
    ],
)
def test_a_variable_that_can_be_used_is(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    RadixFlowClient("http://host")


async def test_a_client_of_the_callers_reads_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALL_PROXY", "foo://localhost:1")
    async with httpx.AsyncClient(trust_env=False) as client:
        RadixFlowClient("http://host", http_client=client)


test_a_client_of_the_callers_reads_its_own = pytest.mark.anyio(
    test_a_client_of_the_callers_reads_its_own
)


@pytest.mark.parametrize(
    "url",
    ["http://" + "a" * 64 + ".com", "http://a..b", "http://\u2024"],
)
def test_a_host_name_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        RadixFlowClient(url)
    assert caught.value.field == "base_url"


def test_a_host_name_of_other_scripts_is_taken() -> None:
    RadixFlowClient("http://b\u00fccher.example")
