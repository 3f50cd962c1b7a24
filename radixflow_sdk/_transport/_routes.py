"""Which way to a server: its plug-in, or the completions that every vLLM server has.

The first answer decides: a server that has no ``/v1/branches`` (404) is asked for
completions from then on, once said so in the log. This room must not know messages.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from radixflow_sdk._config import Settings
from radixflow_sdk._pipe import BranchEvent, GroupRequest
from radixflow_sdk._transport._base import Transport
from radixflow_sdk._transport._completions import CompletionsTransport
from radixflow_sdk._transport._generate import GenerationTransport
from radixflow_sdk._transport._groups import HTTPTransport
from radixflow_sdk._transport._pool import HTTPClient
from radixflow_sdk._transport._replicas import Replicas
from radixflow_sdk.exceptions import APIStatusError, PluginMissingError

logger = logging.getLogger("radixflow")


class Routes:
    """Sends groups to the plug-in, and by completions where there is none.

    Args:
        branches: Speaks to the plug-in.
        completions: Does without.
    """

    def __init__(self, branches: Transport, completions: Transport) -> None:
        self._branches = branches
        self._completions = completions
        self._missing: PluginMissingError | None = None

    async def models(self) -> tuple[str, ...]:
        """Names of the served models.

        Raises:
            APIError: The server could not be asked.
        """
        return await self._branches.models()

    async def stream(self, request: GroupRequest) -> AsyncGenerator[BranchEvent, None]:
        """Send one request; yield its events as they come.

        Raises:
            PluginMissingError: The server has neither the plug-in nor completions.
            APIError: The request failed.
        """
        if self._missing is None:
            try:
                async with aclosing(self._branches.stream(request)) as events:
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
            async with aclosing(self._completions.stream(request)) as events:
                async for event in events:
                    yield event
        except APIStatusError as error:
            if error.status == 404 and type(error) is not PluginMissingError:
                raise self._missing from error
            raise

    async def aclose(self) -> None:
        """Close both; they share their connections."""
        await self._branches.aclose()
        await self._completions.aclose()


class Kinds:
    """Sends what generates one way, and what scores another, to the same server.

    Args:
        scoring: For groups that are scored.
        generating: For groups that go on.
    """

    def __init__(self, scoring: Transport, generating: Transport) -> None:
        self._scoring = scoring
        self._generating = generating

    async def models(self) -> tuple[str, ...]:
        """Names of the served models.

        Raises:
            APIError: The server could not be asked.
        """
        return await self._scoring.models()

    def stream(self, request: GroupRequest) -> AsyncGenerator[BranchEvent, None]:
        """Send one request; yield its events as they come.

        Raises:
            APIError: The request failed.
        """
        kind = self._scoring if request.sampling is None else self._generating
        return kind.stream(request)

    async def aclose(self) -> None:
        """Close both; they share their connections."""
        await self._scoring.aclose()
        await self._generating.aclose()


def connect(settings: Settings, *, http_client: HTTPClient | None = None) -> Transport:
    """A transport to the server, or to all of the servers, by the settings' route.

    Args:
        settings: Where they are.
        http_client: Used as it is and left open; None makes one.
    """
    servers = {
        url: _one(settings, http_client=http_client, base_url=url)
        for url in settings.base_urls
    }
    return Replicas(servers) if len(servers) > 1 else servers[settings.base_urls[0]]


def _one(
    settings: Settings, *, http_client: HTTPClient | None, base_url: str
) -> Transport:
    branches = HTTPTransport(settings, http_client=http_client, base_url=base_url)
    scoring: Transport
    if settings.route == "branches":
        scoring = branches
    elif settings.route == "auto":
        scoring = Routes(branches, CompletionsTransport(branches.http))
    else:
        scoring = CompletionsTransport(branches.http, route=settings.route)
    return Kinds(scoring, GenerationTransport(branches.http))
