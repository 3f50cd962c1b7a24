"""Requests to one server: its URL, its key, its connections, and the bodies it sends.

Foreign exceptions become ours at the `ErrorBoundary`. An answer with a status other
than 200, or of unexpected size, is an error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TypeAlias, TypeVar

import anyio
import httpx

from radixflow_sdk._config import Settings
from radixflow_sdk._events import OnResponse, RawResponse
from radixflow_sdk._transport._environment import from_environment
from radixflow_sdk._transport._errors import ErrorBoundary, check_open, status_error
from radixflow_sdk._transport._redact import Secrets
from radixflow_sdk._validate import check_kind, refuse
from radixflow_sdk.exceptions import (
    APIStatusError,
    InvalidResponseError,
    StreamBrokenError,
)

T = TypeVar("T")

HTTPClient: TypeAlias = httpx.AsyncClient

_MAX_ERROR_BYTES = 64 * 2**10
_IDENTITY = ("", "identity")
# The logits rows of a prompt of 100,000 tokens, as vLLM's completions spell them, take
# about 20 MB.
_MAX_BYTES = 64 * 2**20
# A branch of 100,000 tokens needs about 3 MB.
MAX_LINE_BYTES = 16 * 2**20

IDLE_SECONDS = 4.0
"""How long an idle connection is kept. vLLM's server closes one after 5 s, and a
connection that closes as a request is sent costs that request."""


class Answer:
    """The body of an answer, iterated once, chunk by chunk.

    Args:
        response: httpx's response.
        secrets: Of the request.
        keep: Whether to keep the bytes that are read.

    Attributes:
        secrets: Of the request; redact them in what the server says.
        kept: The bytes read so far, with ``keep``.
    """

    def __init__(
        self, response: httpx.Response, secrets: Secrets, *, keep: bool
    ) -> None:
        self.secrets = secrets
        self.kept = bytearray()
        self._chunks = response.aiter_bytes()
        self._keep = keep

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk = await anext(self._chunks)
        if self._keep:
            self.kept += chunk
        return chunk

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Each line as soon as it is complete, without its line break.

        Raises:
            InvalidResponseError: A line is longer than `MAX_LINE_BYTES`.
            StreamBrokenError: The last line was cut.
        """
        reader = LineReader()
        async for chunk in self:
            for line in reader.feed(chunk):
                yield line
        reader.close()

    async def read(self, limit: int) -> bytes:
        """The body; where it is longer than ``limit``, a little more than that."""
        body = bytearray()
        async for chunk in self:
            body += chunk
            if len(body) > limit:
                break
        return bytes(body)


class LineReader:
    """Splits chunks into lines of bounded length; each byte is scanned once."""

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take a chunk; return the lines that it completes.

        Raises:
            InvalidResponseError: A line is longer than the bound.
        """
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        longest = max(map(len, (*lines, self._rest)))
        if longest > self._max_line_bytes:
            raise InvalidResponseError(
                f"The server sent a line of {longest} bytes or more, above the bound "
                f"of {self._max_line_bytes}; ask for fewer tokens or labels."
            )
        return lines

    def close(self) -> None:
        """The body has ended.

        Raises:
            StreamBrokenError: It ended inside a line.
        """
        if self._rest:
            raise StreamBrokenError(
                f"The server's answer was cut inside a line, after {len(self._rest)} "
                "bytes of it; try again."
            )


class HTTPSession:
    """Sends requests to one server.

    httpx's own pool checks every connection for every other one on each request, and a
    request that is canceled inside it can leave it stuck (httpcore#1093). Here an httpx
    client carries one request at a time, is reused for the next one, and is closed
    after an error. The callers bound the number of clients: the dispatcher admits a
    limited number of groups.

    Args:
        settings: The key and the timeouts.
        http_client: Used as it is and left open; None makes clients as needed.
        base_url: One of the settings' servers; None: the first.

    Raises:
        InvalidInputError: httpx cannot use the URL, or an environment variable.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        http_client: HTTPClient | None = None,
        base_url: str | None = None,
    ) -> None:
        if http_client is not None:
            check_kind("http_client", http_client, httpx.AsyncClient)
        self._base_url = base_url or settings.base_urls[0]
        self._urls: dict[str, httpx.URL] = {}  # parsing a URL is slow in httpx
        self._api_key = settings.api_key
        limits = settings.timeouts
        self._timeout = httpx.Timeout(
            connect=limits.connect, read=limits.read, write=limits.write, pool=None
        )
        self._given = http_client
        self._idle: list[HTTPClient] = []
        self._check_base_url()
        if http_client is None:
            self._verify = from_environment(httpx.create_ssl_context)
            self._idle.append(self._make_client())  # refuses a bad environment at once

    @asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        content: bytes | None = None,
        group_id: str | None = None,
        on_response: OnResponse | None = None,
    ) -> AsyncGenerator[Answer, None]:
        """An answer with status 200, its body unread.

        Args:
            method: The HTTP method.
            path: The path on the server.
            headers: Sent, with the key.
            content: The body to send.
            group_id: For errors.
            on_response: Called with the answer, whatever its status, once it is over.

        Raises:
            APIError: There is none, or it breaks while it is read.
        """
        url = f"{self._base_url}{path}"
        boundary = ErrorBoundary(
            url, request_id=headers.get("X-Request-ID"), group_id=group_id
        )
        # A few bytes of a compressed answer can expand to gigabytes.
        headers = {"Accept-Encoding": "identity", **headers}
        if content is not None:
            headers = {"Content-Type": "application/json", **headers}
        if self._api_key is not None:
            headers = {**headers, "Authorization": f"Bearer {self._api_key}"}
        with boundary.translate():
            async with self._client() as client:
                sent = client.build_request(
                    method, self._parsed(url), content=content, headers=headers
                )
                boundary.secrets = Secrets(sent.headers.raw)
                async with _send(client, sent) as response:
                    answer = Answer(
                        response, boundary.secrets, keep=on_response is not None
                    )
                    try:
                        await _check_status(response, answer, url)
                        boundary.started = True
                        yield answer
                    finally:
                        if on_response is not None:
                            on_response(_raw(response, answer, headers, url, group_id))

    async def get(self, path: str, read: Callable[[bytes], T]) -> T:
        """The body of a ``GET``, parsed by ``read``.

        Raises:
            APIError: The request failed, or ``read`` raises one.
        """
        # A constant session: a router sends repeated questions to the same replica, so
        # that their answers can be compared.
        headers = {"Accept": "application/json", "X-Session-ID": "radixflow"}
        async with self.open("GET", path, headers=headers) as answer:
            return read(await _read_whole(answer, path))

    async def post(
        self,
        path: str,
        content: bytes,
        headers: Mapping[str, str],
        *,
        read: Callable[[bytes], T],
        group_id: str | None = None,
        on_response: OnResponse | None = None,
    ) -> T:
        """The body that answers a ``POST`` of JSON, parsed by ``read``.

        Raises:
            APIError: The request failed, or ``read`` raises one.
        """
        async with self.open(
            "POST",
            path,
            headers={"Accept": "application/json", **headers},
            content=content,
            group_id=group_id,
            on_response=on_response,
        ) as answer:
            return read(await _read_whole(answer, path))

    async def aclose(self) -> None:
        """Close the idle clients; a client in use closes when its request ends."""
        while self._idle:
            await self._idle.pop().aclose()

    def _check_base_url(self) -> None:
        try:
            self._parsed(self._base_url)
        except httpx.InvalidURL as error:  # a host name that is none under IDNA, say
            raise refuse("base_url", self._base_url, f"correct it ({error})") from None

    def _parsed(self, url: str) -> httpx.URL:
        if url not in self._urls:
            self._urls[url] = httpx.URL(url)
        return self._urls[url]

    @asynccontextmanager
    async def _client(self) -> AsyncGenerator[HTTPClient, None]:
        """A client for one request.

        Raises:
            ClientClosedError: The caller's own client is closed.
        """
        if self._given is not None:
            check_open(self._given)
            yield self._given
            return
        client = self._idle.pop() if self._idle else self._make_client()
        reusable = False
        try:
            yield client
            reusable = True
        except APIStatusError:
            reusable = True  # the connection is sound: the server answered
            raise
        finally:
            if reusable:
                self._idle.append(client)
            else:
                with anyio.CancelScope(shield=True):
                    await client.aclose()

    def _make_client(self) -> HTTPClient:
        return from_environment(
            lambda: httpx.AsyncClient(
                timeout=self._timeout,
                limits=httpx.Limits(max_connections=1, keepalive_expiry=IDLE_SECONDS),
                verify=self._verify,
            )
        )


@asynccontextmanager
async def _send(
    client: HTTPClient, request: httpx.Request
) -> AsyncGenerator[httpx.Response, None]:
    response = await client.send(request, stream=True)
    try:
        async with aclosing(response):
            yield response
    finally:
        # httpx's response and its stream reference each other. Break the cycle, so that
        # the body is freed now and not by the garbage collector.
        response.stream = httpx.ByteStream(b"")


async def _check_status(response: httpx.Response, answer: Answer, url: str) -> None:
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if response.status_code != 200:
        readable = encoding in _IDENTITY
        body = await answer.read(_MAX_ERROR_BYTES) if readable else b""
        raise status_error(response.status_code, response.headers, body, url=url)
    if encoding not in _IDENTITY:
        raise InvalidResponseError(
            f"{url} answered with Content-Encoding {encoding[:40]!r}, which was not "
            "requested; disable compression in the proxy or server."
        )


def _raw(
    response: httpx.Response,
    answer: Answer,
    sent: Mapping[str, str],
    url: str,
    group_id: str | None,
) -> RawResponse:
    named = answer.secrets.redact(response.headers.get("x-request-id", ""))
    return RawResponse(
        request_id=named or sent.get("X-Request-ID"),
        group_id=group_id,
        url=url,
        status=response.status_code,
        headers=dict(response.headers),
        body=bytes(answer.kept),
    )


async def _read_whole(answer: Answer, path: str) -> bytes:
    body = await answer.read(_MAX_BYTES)
    if len(body) > _MAX_BYTES:
        raise InvalidResponseError(
            f"The server answered {path} with more than {_MAX_BYTES} bytes; ask for "
            "less at once."
        )
    return body
