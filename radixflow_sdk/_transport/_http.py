"""Requests to one server: its URL, its key and its connections.

What httpx raises becomes ours at the `Wall`. An answer with another status than 200, or
of unexpected size, is an error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import TypeAlias, TypeVar

import anyio
import httpx

from radixflow_sdk._config import Settings, Timeouts, check_kind
from radixflow_sdk._events import OnResponse, RawResponse
from radixflow_sdk._transport._errors import Wall, check_open, status_error
from radixflow_sdk._transport._redact import Secrets
from radixflow_sdk.exceptions import APIStatusError, InvalidResponseError

T = TypeVar("T")

HTTPClient: TypeAlias = httpx.AsyncClient

# An error body is for people; a stray answer of gigabytes is not read to its end.
_MAX_ERROR_BYTES = 64 * 2**10
# The rows of a prompt of 100,000 tokens, as vLLM's completions spell them: about 20 MB.
_MAX_BYTES = 64 * 2**20

_NOTHING = httpx.ByteStream(b"")

IDLE_SECONDS = 4.0
"""How long a connection may lie idle and be used again.  vLLM's server closes it after
5; one that is used as it closes costs a request."""


class Answer:
    """An answer's body, read once.

    Args:
        found: httpx's answer.
        secrets: Of the request.
        keep: Whether to keep what is read.

    Attributes:
        secrets: What it must not get repeated.
        kept: What was read.
    """

    def __init__(self, found: httpx.Response, secrets: Secrets, *, keep: bool) -> None:
        self.secrets = secrets
        self.kept = bytearray()
        self._chunks = found.aiter_bytes()
        self._keep = keep

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes, decoded."""
        return self if self._keep else self._chunks

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk = await anext(self._chunks)
        self.kept += chunk
        return chunk


class HTTPSession:
    """Asks one server.

    Args:
        settings: Where the server is.
        http_client: Used as it is and left open; None makes one that is closed with
            this.
        base_url: One of the settings' servers; None: the first.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        http_client: HTTPClient | None = None,
        base_url: str | None = None,
    ) -> None:
        self._base_url = base_url or settings.base_urls[0]
        self._urls: dict[str, httpx.URL] = {}  # httpx takes long to read one
        self._api_key = settings.api_key
        self._pool = Pool(settings.timeouts, http_client)

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
        """An answer of status 200, its body unread.

        Args:
            method: HTTP's.
            path: Where on the server.
            headers: Sent, with the key.
            content: The body to send.
            group_id: For errors.
            on_response: Called with the answer, whatever its status, once it is over.

        Raises:
            APIError: There is none, or it breaks while it is read.
        """
        url = f"{self._base_url}{path}"
        wall = Wall(url, request_id=headers.get("X-Request-ID"), group_id=group_id)
        if self._api_key is not None:
            headers = {**headers, "Authorization": f"Bearer {self._api_key}"}
        with wall.guard():
            async with self._pool.client() as client:
                sent = client.build_request(
                    method, self._parsed(url), content=content, headers=headers
                )
                wall.secrets = Secrets(sent.headers.raw)
                async with _sent(client, sent) as found:
                    answer = Answer(found, wall.secrets, keep=on_response is not None)
                    try:
                        await _check_status(found, answer, url)
                        wall.started = True
                        yield answer
                    finally:
                        if on_response is not None:
                            on_response(_raw(found, answer, headers, url, group_id))

    def _parsed(self, url: str) -> httpx.URL:
        if url not in self._urls:
            self._urls[url] = httpx.URL(url)
        return self._urls[url]

    async def get(self, path: str, read: Callable[[bytes], T]) -> T:
        """The body of a ``GET``, as ``read`` reads it.

        Raises:
            APIError: The server could not be asked, or ``read`` raises one.
        """
        # Of a router's replicas always the same one: it may be asked again, to compare.
        headers = {"Accept": "application/json", "X-Session-ID": "radixflow"}
        async with self.open("GET", path, headers=headers) as it:
            return read(await _read_whole(it, path))

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
        """The body that answers a ``POST`` of JSON, as ``read`` reads it.

        Raises:
            APIError: The server could not be asked, or ``read`` raises one.
        """
        headers = {
            "Accept": "application/json",
            "Content-Type": "application/json",
            **headers,
        }
        async with self.open(
            "POST",
            path,
            headers=headers,
            content=content,
            group_id=group_id,
            on_response=on_response,
        ) as it:
            return read(await _read_whole(it, path))

    async def aclose(self) -> None:
        """Close the connections, unless they belong to the caller's client."""
        await self._pool.aclose()


@asynccontextmanager
async def _sent(
    client: HTTPClient, request: httpx.Request
) -> AsyncGenerator[httpx.Response, None]:
    found = await client.send(request, stream=True)
    try:
        async with aclosing(found):
            yield found
    finally:
        # It and its stream hold one another; see `RetryingTransport.stream`.
        found.stream = _NOTHING


async def _check_status(found: httpx.Response, answer: Answer, url: str) -> None:
    if found.status_code != 200:
        body = await _read(answer, _MAX_ERROR_BYTES)
        raise status_error(found.status_code, found.headers, body, url=url)


def _raw(
    found: httpx.Response,
    answer: Answer,
    sent: Mapping[str, str],
    url: str,
    group_id: str | None,
) -> RawResponse:
    named = answer.secrets.redact(found.headers.get("x-request-id", ""))
    return RawResponse(
        request_id=named or sent.get("X-Request-ID"),
        group_id=group_id,
        url=url,
        status=found.status_code,
        headers=dict(found.headers),
        body=bytes(answer.kept),
    )


async def _read_whole(answer: Answer, path: str) -> bytes:
    body = await _read(answer, _MAX_BYTES)
    if len(body) > _MAX_BYTES:
        raise InvalidResponseError(
            f"The server answered {path} with more than {_MAX_BYTES} bytes; ask for "
            "less at once."
        )
    return body


async def _read(answer: Answer, most: int) -> bytes:
    """The body, or a little more than ``most`` bytes of it."""
    body = bytearray()
    async for chunk in answer.chunks():
        body += chunk
        if len(body) > most:
            break
    return bytes(body)


# --- connections ----------------------------------------------------------------------


class Pool:
    """Lends httpx clients: one for each request under way, used again when it is over.

    httpx's own pool looks at every connection for every other one on each request, and
    a request that is cancelled inside it can leave it stuck (httpcore#1093). Here a
    client carries one request at a time, and a client that saw an error is closed.
    The number of clients is bounded by the callers: a group needs a turn first.

    Args:
        timeouts: For the clients that it makes.
        http_client: Lent to all, and left open; None makes clients as needed.
    """

    def __init__(self, timeouts: Timeouts, http_client: HTTPClient | None) -> None:
        self._timeout = httpx.Timeout(
            connect=timeouts.connect,
            read=timeouts.read,
            write=timeouts.write,
            pool=None,
        )
        if http_client is not None:
            check_kind("http_client", http_client, httpx.AsyncClient)
        self._given = http_client
        self._idle: list[HTTPClient] = []
        self._verify = None if http_client else httpx.create_ssl_context()

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[HTTPClient, None]:
        """A client for one request.

        Raises:
            ClientClosedError: The caller's own client is closed.
        """
        if self._given is not None:
            check_open(self._given)
            yield self._given
            return
        client = self._idle.pop() if self._idle else self._make()
        whole = False
        try:
            yield client
            whole = True
        except APIStatusError:
            whole = True  # an answer like another
            raise
        finally:
            if whole:
                self._idle.append(client)
            else:
                with anyio.CancelScope(shield=True):
                    await client.aclose()

    async def aclose(self) -> None:
        """Close the clients that are not lent; the others close when they come back."""
        while self._idle:
            await self._idle.pop().aclose()

    def _make(self) -> HTTPClient:
        return httpx.AsyncClient(
            timeout=self._timeout,
            limits=httpx.Limits(max_connections=1, keepalive_expiry=IDLE_SECONDS),
            verify=self._verify or True,
        )
