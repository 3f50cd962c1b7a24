"""httpx's exceptions and HTTP statuses, translated into ours.

`_FOREIGN` lists every exception class that httpx exports; a test fails when httpx adds
one.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
from pydantic import ValidationError

from radixflow_sdk._transport._redact import Secrets
from radixflow_sdk.exceptions import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    AuthenticationError,
    ClientClosedError,
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
)

_SHOWN = 300
_OURS = ("/v1/branches", "/v1/radixflow/stats")
_TITLE = re.compile("<title[^<>]*>([^<>]*)", re.IGNORECASE)
_TAG = re.compile("<[^<>]*>")
_SECONDS = re.compile("[0-9]+")
_MILLISECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")

# Before the answer has begun. Once it has, a failed connection is a broken stream.
_FOREIGN: Mapping[type[Exception], type[APIError]] = {
    httpx.HTTPError: APIConnectionError,
    httpx.RequestError: APIConnectionError,
    httpx.TransportError: APIConnectionError,
    httpx.TimeoutException: APITimeoutError,
    httpx.ConnectTimeout: ConnectTimeoutError,
    httpx.ReadTimeout: APITimeoutError,
    httpx.WriteTimeout: APITimeoutError,
    httpx.PoolTimeout: APITimeoutError,
    httpx.NetworkError: APIConnectionError,
    httpx.ConnectError: APIConnectionError,
    httpx.ReadError: APIConnectionError,
    httpx.WriteError: APIConnectionError,
    httpx.CloseError: APIConnectionError,
    httpx.ProtocolError: APIConnectionError,
    httpx.LocalProtocolError: APIConnectionError,
    httpx.RemoteProtocolError: APIConnectionError,
    httpx.ProxyError: APIConnectionError,
    httpx.UnsupportedProtocol: APIConnectionError,
    httpx.InvalidURL: APIConnectionError,
    httpx.TooManyRedirects: InvalidResponseError,
    httpx.DecodingError: InvalidResponseError,
    httpx.HTTPStatusError: InvalidResponseError,
    httpx.CookieConflict: InvalidResponseError,
    httpx.StreamError: StreamBrokenError,
    httpx.StreamConsumed: StreamBrokenError,
    httpx.StreamClosed: StreamBrokenError,
    httpx.ResponseNotRead: StreamBrokenError,
    httpx.RequestNotRead: StreamBrokenError,
}

_UNREACHED = "check that the server runs and that base_url names it"
_ADVICE: Mapping[type[APIError], str] = {
    APIConnectionError: _UNREACHED,
    APITimeoutError: "raise Timeouts or send fewer options at once",
    ConnectTimeoutError: _UNREACHED,
    StreamBrokenError: "try again",
    InvalidResponseError: "check that base_url names a RadixFlow server",
}
_SPEAKS_HTTP = "the server may speak http, so try http:// in place of https://"
_PROXY_ADVICE = {
    502: "a proxy answered: no server behind it is up yet",
    503: "a proxy answered: no server behind it is up, or it is overloaded",
    504: "a proxy answered: the server behind it exceeded the proxy's timeout",
}
NOT_VLLM = (
    "something answers there, but it is no vLLM server; check host, port and path"
)


class ErrorBoundary:
    """Translates the exceptions of one request.

    Attributes:
        started: Set once the answer has begun.
        secrets: Of the request; set once it is built.
    """

    def __init__(
        self, url: str, *, request_id: str | None = None, group_id: str | None = None
    ) -> None:
        self.started = False
        self.secrets = Secrets()
        self._url = url
        self._request_id = request_id
        self._group_id = group_id

    @contextmanager
    def translate(self) -> Iterator[None]:
        """Let no exception of httpx and no secret pass.

        Raises:
            APIError: In place of httpx's exception, with the request's ids.
        """
        try:
            yield
        except APIError as error:
            self.secrets.redact_error(error)
            error.request_id = error.request_id or self._request_id
            error.group_id = error.group_id or self._group_id
            raise
        except tuple(_FOREIGN) as error:
            self.secrets.redact_error(error)
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> APIError:
        ours = next(_FOREIGN[kind] for kind in type(error).__mro__ if kind in _FOREIGN)
        if self.started and ours is APIConnectionError:
            ours = StreamBrokenError
        detail = f": {error}" if str(error) else ""
        # How OpenSSL reports a peer that answers a TLS handshake in plain HTTP.
        plain = "WRONG_VERSION_NUMBER" in detail or "RECORD_LAYER_FAILURE" in detail
        advice = _SPEAKS_HTTP if plain and not self.started else _ADVICE[ours]
        return ours(
            f"{self._url} failed with {type(error).__name__}{detail}; {advice}.",
            request_id=self._request_id,
            group_id=self._group_id,
        )


def first_problem(error: ValidationError, *, show_input: bool = False) -> str:
    """The first problem that pydantic found: where, what, and on request the value."""
    detail = error.errors(
        include_url=False, include_context=False, include_input=show_input
    )[0]
    path = ".".join(map(str, detail["loc"])) or "whole"
    shown = f", got {repr(detail['input'])[:80]}" if show_input else ""
    return f"{path}: {detail['msg']}{shown}"


def check_open(client: httpx.AsyncClient) -> None:
    """Refuse a closed httpx client, for which httpx raises a bare RuntimeError.

    Raises:
        ClientClosedError: The client is closed.
    """
    if client.is_closed:
        raise ClientClosedError("The http_client is closed; make a new client.")


def status_error(
    status: int, headers: Mapping[str, str], body: bytes, *, url: str
) -> APIStatusError:
    """The error for an answer with a status other than 200."""
    problem = _problem(body)
    code, message, field = (
        problem.get("code"),
        problem.get("message"),
        problem.get("field"),
    )
    code = code if isinstance(code, str) else None
    kind = _status_class(status, code, str(message), url)
    quoted = "" if kind is AuthenticationError else _one_line(str(message or ""))
    detail = f" ({quoted})" if quoted else ""
    advice = _status_advice(kind)
    is_page = body.lstrip()[:1] == b"<"
    if is_page and status in _PROXY_ADVICE:
        advice = _PROXY_ADVICE[status]
    elif 300 <= status < 400:
        where = _one_line(headers.get("location", "elsewhere"))
        advice = f"it leads to {where}, so give base_url accordingly"
    elif _is_not_vllm(status, kind, url, is_page=is_page):
        advice = NOT_VLLM
    return kind(
        f"{url} answered {status}{detail}; {advice}.",
        status=status,
        code=code,
        field=field if isinstance(field, str) else None,
        retry_after=retry_after(headers, now=datetime.now(UTC)),
        request_id=headers.get("x-request-id"),
    )


def _problem(body: bytes) -> Mapping[str, Any]:
    """An error body of ours, vLLM, FastAPI or a proxy, in one shape."""
    text = body.decode(errors="replace").strip()
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {"message": _page_text(text) if text.startswith("<") else text}
    error = value.get("error", value) if isinstance(value, dict) else text
    if isinstance(error, dict):
        return {"message": error.get("detail", ""), **error}
    return {"message": str(error)}


def _page_text(page: str) -> str:
    """An HTML page's title, or its text where it has none."""
    title = _TITLE.search(page)
    return html.unescape(title[1] if title else _TAG.sub(" ", page))


def _one_line(text: str) -> str:
    """Short, on one line, and without control characters."""
    shown = "".join(c if c.isprintable() else " " for c in text[: 2 * _SHOWN])
    return " ".join(shown.split())[:_SHOWN]


def _is_not_vllm(
    status: int, kind: type[APIStatusError], url: str, *, is_page: bool
) -> bool:
    """Whether no vLLM server answers like this.

    Every one has ``/v1/models`` and reports missing paths in JSON. A proxy in front of
    it may fail, or refuse a key or a large body, with a page of its own.
    """
    if url.endswith("/v1/models"):
        return not (kind.retryable or kind is AuthenticationError)
    return is_page and status in (404, 405, 501)


def _status_class(
    status: int, code: str | None, message: str, url: str
) -> type[APIStatusError]:
    if status == 404:
        # vLLM's own body has the status as its code and names the model in its message.
        if code == "model_not_found" or "does not exist" in message:
            return ModelNotFoundError
        return PluginMissingError if url.endswith(_OURS) else InvalidRequestError
    if code == "context_too_long":
        return ContextTooLongError
    exact: dict[int, type[APIStatusError]] = {
        401: AuthenticationError,
        403: AuthenticationError,
        408: TransientRequestError,
        409: TransientRequestError,
        425: TransientRequestError,
        429: RateLimitError,
        501: UnsupportedError,
    }
    if status in exact:
        return exact[status]
    if status >= 500:
        return ServerError
    return InvalidRequestError if status >= 400 else APIStatusError


def _status_advice(kind: type[APIStatusError]) -> str:
    return {
        AuthenticationError: "give the server's key as api_key or RADIXFLOW_API_KEY",
        ModelNotFoundError: "name a served model, or leave model out",
        PluginMissingError: "the server has no RadixFlow plug-in, so start it with "
        "`radixflow serve MODEL`",
        # The server's message already asks to shorten the prompt.
        ContextTooLongError: "or serve with a larger --max-model-len",
        InvalidRequestError: "change the request",
        TransientRequestError: "try again, with fewer options where it was too slow",
        RateLimitError: "wait and try again",
        UnsupportedError: "serve with `--logprobs-mode raw_logprobs`",
        ServerError: "see the server's log",
    }.get(kind, "check that base_url names a RadixFlow server")


def retry_after(headers: Mapping[str, str], *, now: datetime) -> float | None:
    """Seconds that the server asks the client to wait.

    Args:
        headers: ``retry-after-ms`` takes precedence; ``retry-after`` (RFC 9110, 10.2.3)
            is whole seconds or an HTTP date. Anything else is ignored.
        now: The time that a date is measured from.
    """
    milliseconds = headers.get("retry-after-ms", "").strip()
    if _MILLISECONDS.fullmatch(milliseconds):
        return float(milliseconds) / 1000
    value = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(value):
        return float(value)
    try:
        then = parsedate_to_datetime(value)
        if then.tzinfo is None:
            then = then.replace(tzinfo=UTC)
        return max(0.0, (then - now).total_seconds())
    except (ValueError, OverflowError):
        return None
