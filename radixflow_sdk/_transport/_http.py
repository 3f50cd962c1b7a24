"""One server over HTTP: its URL, its key, its connections. Every request ends here.

What httpx raises becomes ours at the `Wall`; an answer with another status than 200 is
an error, and one of unexpected size too. This room must not know the wire.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import httpx

from radixflow_sdk._config import Settings
from radixflow_sdk._transport._errors import Wall, status_error
from radixflow_sdk._transport._pool import HTTPClient, Pool
from radixflow_sdk.exceptions import InvalidResponseError

# An error body is for people; a stray answer of gigabytes is not read to its end.
_MAX_ERROR_BYTES = 64 * 2**10
# The rows of a prompt of 100,000 tokens, as vLLM's completions spell them: about 20 MB.
_MAX_BYTES = 64 * 2**20


class Http:
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
    ) -> AsyncGenerator[httpx.Response, None]:
        """An answer of status 200, its body unread.

        Raises:
            APIError: There is none, or it breaks while it is read.
        """
        url = f"{self._base_url}{path}"
        wall = Wall(url, request_id=headers.get("X-Request-ID"), group_id=group_id)
        if self._api_key is not None:
            headers = {**headers, "Authorization": f"Bearer {self._api_key}"}
        with wall.guard():
            async with (
                self._pool.client() as client,
                client.stream(method, url, content=content, headers=headers) as answer,
            ):
                if answer.status_code != 200:
                    raise status_error(
                        answer.status_code,
                        answer.headers,
                        await _read(answer, _MAX_ERROR_BYTES),
                        url=url,
                        api_key=self._api_key,
                    )
                wall.started = True
                yield answer

    async def get(self, path: str) -> bytes:
        """The body of a ``GET``.

        Raises:
            APIError: The server could not be asked.
        """
        async with self.open("GET", path, headers={"Accept": "application/json"}) as it:
            return await _read_whole(it, path)

    async def post(
        self, path: str, content: bytes, headers: Mapping[str, str]
    ) -> bytes:
        """The body that answers a ``POST`` of JSON.

        Raises:
            APIError: The server could not be asked.
        """
        headers = {
            "Accept": "application/json",
            "Content-Type": "application/json",
            **headers,
        }
        async with self.open("POST", path, headers=headers, content=content) as it:
            return await _read_whole(it, path)

    async def aclose(self) -> None:
        """Close the connections, unless they belong to the caller's client."""
        await self._pool.aclose()


async def _read_whole(answer: httpx.Response, path: str) -> bytes:
    body = await _read(answer, _MAX_BYTES)
    if len(body) > _MAX_BYTES:
        raise InvalidResponseError(
            f"The server answered {path} with more than {_MAX_BYTES} bytes; ask for "
            "less at once."
        )
    return body


async def _read(answer: httpx.Response, most: int) -> bytes:
    """The body, or a little more than ``most`` bytes of it."""
    body = bytearray()
    async for chunk in answer.aiter_bytes():
        body += chunk
        if len(body) > most:
            break
    return bytes(body)
