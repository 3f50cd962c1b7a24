"""One server, and the route by which it answers each group.

Branches are scored by the RadixFlow plug-in or, where the server has none, through
``/v1/completions``; text is always generated through ``/v1/completions``. The first 404
decides: from then on the server is asked for completions, which the log says once.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from radixflow_sdk._config import Settings
from radixflow_sdk._messages import BranchEvent, GroupRequest
from radixflow_sdk._transport._base import Transport
from radixflow_sdk._transport._branches import stream_branches
from radixflow_sdk._transport._completions import CompletionsScorer
from radixflow_sdk._transport._generate import stream_texts
from radixflow_sdk._transport._http import HTTPClient, HTTPSession
from radixflow_sdk._transport._replicas import Replicas
from radixflow_sdk._transport._wire import read_models, read_stats
from radixflow_sdk.exceptions import APIStatusError, PluginMissingError

logger = logging.getLogger("radixflow")


class ServerTransport:
    """Speaks to one server over HTTP.

    Args:
        settings: The key, the timeouts and the route.
        http_client: Used as it is and left open; None makes clients that are closed
            with this transport.
        base_url: One of the settings' servers; None: the first.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        http_client: HTTPClient | None = None,
        base_url: str | None = None,
    ) -> None:
        self._http = HTTPSession(settings, http_client=http_client, base_url=base_url)
        self._route = settings.route
        self._scorer = CompletionsScorer(self._http, route=settings.route)
        self._missing: PluginMissingError | None = None

    async def models(self) -> tuple[str, ...]:
        """Names of the served models (``GET /v1/models``).

        Raises:
            APIError: The server could not be asked.
        """
        return await self._http.get("/v1/models", read_models)

    async def stats(self) -> Mapping[str, Any]:
        """The scheduler's statistics (``GET /v1/radixflow/stats``).

        Raises:
            APIError: The server could not be asked, or has no plug-in.
        """
        return await self._http.get("/v1/radixflow/stats", read_stats)

    def stream(self, request: GroupRequest) -> AsyncGenerator[BranchEvent, None]:
        """Send one request; yield its events as they come.

        Raises:
            PluginMissingError: The server has no route to score by.
            APIError: The request failed.
        """
        if request.sampling is not None:
            return stream_texts(self._http, request)
        if self._route == "branches":
            return stream_branches(self._http, request)
        if self._route == "auto":
            return self._stream_by_any_route(request)
        return self._scorer.stream(request)

    async def aclose(self) -> None:
        """Close the connections, unless they belong to the caller's client."""
        await self._http.aclose()

    async def _stream_by_any_route(
        self, request: GroupRequest
    ) -> AsyncGenerator[BranchEvent, None]:
        if self._missing is None:
            try:
                async with aclosing(stream_branches(self._http, request)) as events:
                    async for event in events:
                        yield event
                return
            except PluginMissingError as error:
                self._missing = error  # a 404: nothing was yielded
                logger.warning(
                    "the server has no RadixFlow plug-in: its scores come through "
                    "/v1/completions, which is slower (%s)",
                    error,
                )
        try:
            async with aclosing(self._scorer.stream(request)) as events:
                async for event in events:
                    yield event
        except APIStatusError as error:
            if error.status == 404 and type(error) is not PluginMissingError:
                raise self._missing from error
            raise


def connect(settings: Settings, *, http_client: HTTPClient | None = None) -> Transport:
    """A transport to the server, or to all of the servers.

    Args:
        settings: Where they are.
        http_client: Used as it is and left open; None makes one.
    """
    servers = {
        url: ServerTransport(settings, http_client=http_client, base_url=url)
        for url in settings.base_urls
    }
    return Replicas(servers) if len(servers) > 1 else servers[settings.base_urls[0]]
