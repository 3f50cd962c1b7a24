"""The error boundary: no exception of httpx passes, and every status has its error."""

import inspect
import math
import pickle
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import radixflow_sdk
from radixflow_sdk import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    AuthenticationError,
    ConnectTimeoutError,
    ContextTooLongError,
    InvalidRequestError,
    InvalidResponseError,
    ModelNotFoundError,
    PluginMissingError,
    RateLimitError,
    ServerError,
    StreamBrokenError,
    TransientRequestError,
    UnsupportedError,
    exceptions,
)
from radixflow_sdk._transport._errors import (
    _FOREIGN,
    ErrorBoundary,
    retry_after,
    status_error,
)

HTTPX_ERRORS = [
    value
    for _, value in inspect.getmembers(httpx, inspect.isclass)
    if issubclass(value, Exception)
]
URL = "http://test/v1/branches"


def test_every_exception_of_httpx_is_mapped() -> None:
    assert set(HTTPX_ERRORS) == set(_FOREIGN)


@pytest.mark.parametrize("kind", HTTPX_ERRORS)
def test_nothing_of_httpx_gets_out(kind: type[Exception]) -> None:
    error = kind.__new__(kind)
    Exception.__init__(error, "detail")

    def fail() -> None:
        with ErrorBoundary(URL, request_id="r", group_id="g").translate():
            raise error

    with pytest.raises(APIError) as caught:
        fail()
    assert caught.value.__cause__ is error
    assert (caught.value.request_id, caught.value.group_id) == ("r", "g")


@pytest.mark.parametrize(
    ("error", "before", "after"),
    [
        (httpx.ConnectError("x"), APIConnectionError, StreamBrokenError),
        (httpx.RemoteProtocolError("x"), APIConnectionError, StreamBrokenError),
        (httpx.ReadError("x"), APIConnectionError, StreamBrokenError),
        (httpx.ReadTimeout("x"), APITimeoutError, APITimeoutError),
        (httpx.ConnectTimeout("x"), ConnectTimeoutError, ConnectTimeoutError),
        (httpx.DecodingError("x"), InvalidResponseError, InvalidResponseError),
    ],
)
def test_a_started_answer_breaks(
    error: Exception, before: type[APIError], after: type[APIError]
) -> None:
    for started, expected in ((False, before), (True, after)):
        boundary = ErrorBoundary(URL)
        boundary.started = started
        with pytest.raises(expected), boundary.translate():
            raise error


def problem(code: str, message: str = "Because.", field: str | None = None) -> str:
    parts = f'"code": "{code}", "message": "{message}", "type": "radixflow_error"'
    where = f'"{field}"' if field else "null"
    return f'{{"error": {{{parts}, "field": {where}}}}}'


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, problem("invalid_json"), InvalidRequestError),
        (422, problem("invalid_request"), InvalidRequestError),
        (422, problem("token_out_of_range"), InvalidRequestError),
        (422, problem("context_too_long"), ContextTooLongError),
        (404, problem("model_not_found"), ModelNotFoundError),
        (
            404,
            '{"error": {"message": "The model `x` does not exist.", "code": 404}}',
            ModelNotFoundError,
        ),
        (404, '{"detail": "Not Found"}', PluginMissingError),
        (404, "<html>nope</html>", PluginMissingError),
        (401, '{"error": "Unauthorized"}', AuthenticationError),
        (403, "", AuthenticationError),
        (408, problem("body_too_slow"), TransientRequestError),
        (409, "", TransientRequestError),
        (413, problem("body_too_large"), InvalidRequestError),
        (425, "", TransientRequestError),
        (429, "slow down", RateLimitError),
        (500, "", ServerError),
        (501, problem("unsupported"), UnsupportedError),
        (502, "<html>bad gateway</html>", ServerError),
        (503, problem("engine_dead"), ServerError),
        (307, "", APIStatusError),
        (204, "[1]", APIStatusError),
        (418, "null", InvalidRequestError),
        (500, "[" * 100_000, ServerError),
    ],
)
def test_every_status_has_its_error(
    status: int, body: str, kind: type[APIStatusError]
) -> None:
    error = status_error(status, {}, body.encode(), url=URL)
    assert type(error) is kind
    assert error.status == status
    assert str(status) in str(error)
    assert str(error).endswith(".")


def test_the_servers_words_are_kept() -> None:
    body = problem("invalid_request", "too few", "branches.3.text").encode()
    error = status_error(422, {}, body, url=URL)
    assert (error.code, error.field) == ("invalid_request", "branches.3.text")
    assert "too few" in str(error)


def test_a_missing_plugin_names_the_fix() -> None:
    error = status_error(404, {}, b'{"detail":"Not Found"}', url=URL)
    assert "radixflow serve MODEL" in str(error)


def test_another_missing_path_is_not_a_missing_plugin() -> None:
    error = status_error(404, {}, b"", url="http://test/v1/models")
    assert type(error) is InvalidRequestError


PAGE = b"""<!DOCTYPE HTML>
<html><head><title>Error &amp;
response\x1b[31m</title><style>p {}</style></head><body><p>Nothing here</p></body>
"""


def test_where_an_answer_leads_is_told() -> None:
    headers = {"location": "https://test/v1/models"}
    told = str(status_error(301, headers, b"", url="http://test/v1/models"))
    assert "301; it leads to https://test/v1/models, so" in told


def test_a_page_becomes_its_title_and_text_one_line() -> None:
    assert "500 (Error & response [31m); see" in str(
        status_error(500, {}, PAGE, url=URL)
    )
    assert "no server behind it is up" in str(status_error(502, {}, PAGE, url=URL))
    bare = status_error(502, {}, b"<p>bad <b>gateway</b></p>", url=URL)
    assert "(bad gateway)" in str(bare)
    long = status_error(500, {}, b"<" * 60_000 + b"a\n" * 9, url=URL)
    assert len(str(long)) < 400
    assert "\n" not in str(long)


@pytest.mark.parametrize(
    ("status", "body", "path"),
    [
        (404, PAGE, "/v1/models"),
        (404, b'{"detail":"Not Found"}', "/v1/models"),
        (400, b"The plain HTTP request was sent to HTTPS port", "/v1/models"),
        (404, PAGE, "/v1/branches"),
        (405, PAGE, "/v1/completions"),
        (501, PAGE, "/v1/branches"),
    ],
)
def test_what_no_vllm_server_answers(status: int, body: bytes, path: str) -> None:
    told = str(status_error(status, {}, body, url=f"http://test{path}"))
    assert "it is no vLLM server; check host, port and path" in told


@pytest.mark.parametrize(
    ("status", "path"),
    [(401, "/v1/models"), (503, "/v1/models"), (413, "/v1/branches")],
)
def test_what_a_proxy_before_one_may_answer(status: int, path: str) -> None:
    told = str(status_error(status, {}, PAGE, url=f"http://test{path}"))
    assert "no vLLM server" not in told


def test_a_document_that_is_too_long_is_advised_once() -> None:
    said = "the prompt has 9 tokens: shorten the document or the branch"
    body = problem("context_too_long", said).encode()
    assert str(status_error(422, {}, body, url=URL)).endswith(
        "shorten the document or the branch); or serve with a larger --max-model-len."
    )


@pytest.mark.parametrize(
    ("detail", "advice"),
    [
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "try http://"),
        ("[SSL: RECORD_LAYER_FAILURE] record layer failure", "try http://"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed", "check that the server runs"),
    ],
)
def test_https_to_a_server_that_speaks_http(detail: str, advice: str) -> None:
    with (
        pytest.raises(APIConnectionError, match=advice),
        ErrorBoundary(URL).translate(),
    ):
        raise httpx.ConnectError(detail)


NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATE = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("3", 3.0),
        (" 0 ", 0.0),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90.0),
        (format_datetime(NOW - timedelta(seconds=90), usegmt=True), 0.0),
        ("Thu, 01 Jan 2026 00:00:05 -0000", 5.0),
        ("-3", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("²", None),
        ("9" * 400, math.inf),
        ("Fri, 31 Dec 9999 23:59:59 GMT", (LATE - NOW).total_seconds()),
        ("Thu, 01 Jan 99999999999 00:00:00 GMT", None),
    ],
)
def test_retry_after(value: str | None, expected: float | None) -> None:
    headers = {} if value is None else {"retry-after": value}
    assert retry_after(headers, now=NOW) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [("1500", 1.5), ("0.5", 0.0005), ("-1", 3.0), ("soon", 3.0), ("nan", 3.0)],
)
def test_retry_after_in_milliseconds_goes_first(value: str, expected: float) -> None:
    headers = {"retry-after-ms": value, "retry-after": "3"}
    assert retry_after(headers, now=NOW) == expected


@given(st.text())
def test_retry_after_takes_anything(value: str) -> None:
    for name in ("retry-after", "retry-after-ms"):
        wait = retry_after({name: value}, now=NOW)
        assert wait is None or wait >= 0


def test_the_request_id_of_the_answer_is_kept() -> None:
    headers = {"x-request-id": "req-7"}
    error = status_error(500, headers, b"", url=URL)
    assert error.request_id == "req-7"


ERRORS = [
    value
    for _, value in inspect.getmembers(exceptions, inspect.isclass)
    if issubclass(value, Exception)
]


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_are_public_drawn_and_travel(kind: type[Exception]) -> None:
    assert getattr(radixflow_sdk, kind.__name__) is kind
    assert f" {kind.__name__}" in str(exceptions.__doc__)
    error = kind("What it was.")
    error.__dict__["request_id"] = "r"
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (kind, "What it was.", vars(error))


def test_the_retryable_ones() -> None:
    retryable = {kind.__name__ for kind in ERRORS if getattr(kind, "retryable", False)}
    assert retryable == {
        "APIConnectionError",
        "APITimeoutError",
        "ConnectTimeoutError",
        "RateLimitError",
        "TransientRequestError",
        "ServerError",
        "StreamBrokenError",
    }
