"""Settings as frozen values: where the server is, how long to wait, how often to retry.

Every value is checked when it is made, so that nothing later can be wrong. This is the
only room that reads environment variables: ``RADIXFLOW_BASE_URL``,
``RADIXFLOW_API_KEY``. It must not open anything, and the API key must not show in a
repr or an error.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from radixflow_sdk.exceptions import InvalidInputError

DEFAULT_BASE_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long to wait, in seconds. None waits for ever.

    Attributes:
        connect: For a connection to the server.
        idle: For the next byte, in either direction, once connected.
        total: For a group's own work, with all its retries and the waits between them.
            Waiting for one of the client's connections to become free is not counted.

    Raises:
        InvalidInputError: A value is not a positive, finite number.
    """

    connect: float | None = 10.0
    idle: float | None = 300.0
    total: float | None = 600.0

    def __post_init__(self) -> None:
        for name in ("connect", "idle", "total"):
            value = getattr(self, name)
            if value is not None:
                check_number(f"timeout.{name}", value, least=0.0, strictly=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how patiently one group is sent again.

    Retried are connections that fail, the statuses 429 and 5xx (501 excepted), broken
    streams and branches that failed retryably; only the missing branches are sent
    again. The wait before attempt n + 1 is uniform between 0 and
    ``min(maximum, initial * 2**(n - 1))`` ("full jitter"), or what ``Retry-After``
    asks, at most ``retry_after_maximum``.

    Attributes:
        attempts: Requests that one group may take in all, the first included.
        initial: Upper bound of the first wait, in seconds.
        maximum: Upper bound of every wait, in seconds.
        retry_after_maximum: The longest ``Retry-After`` to honour in full, in seconds.

    Raises:
        InvalidInputError: A value is not a finite number in its range.
    """

    attempts: int = 3
    initial: float = 0.5
    maximum: float = 8.0
    retry_after_maximum: float = 60.0

    def __post_init__(self) -> None:
        check_count("retry.attempts", self.attempts)
        for name in ("initial", "maximum", "retry_after_maximum"):
            check_number(f"retry.{name}", getattr(self, name), least=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where the server is, and how one client talks to it.

    Raises:
        InvalidInputError: A value is not usable.
    """

    base_url: str
    api_key: str | None = field(repr=False)
    timeouts: Timeouts
    retry: RetryPolicy
    max_connections: int

    def __post_init__(self) -> None:
        _check_base_url(self.base_url)
        check_count("max_connections", self.max_connections)
        key = self.api_key
        # A blank in a header value would surface later, in an error that quotes the
        # key.
        if key is not None and not (
            key.isascii() and key.isprintable() and key.strip()
        ):
            raise InvalidInputError(
                "api_key is empty or has characters that a header cannot hold; give "
                "the key alone.",
                field="api_key",
            )


def read_settings(
    *,
    base_url: str | None,
    api_key: str | None,
    timeout: Timeouts | float | None,
    retry: RetryPolicy | None,
    max_connections: int,
) -> Settings:
    """Fill what was left out from the environment and the defaults.

    Raises:
        InvalidInputError: A value is not usable.
    """
    url = base_url or os.environ.get("RADIXFLOW_BASE_URL") or DEFAULT_BASE_URL
    if isinstance(timeout, Timeouts):
        timeouts = timeout
    else:
        timeouts = Timeouts() if timeout is None else Timeouts(total=timeout)
    return Settings(
        # OpenAI clients are given the URL with /v1; taking both saves a wrong 404.
        base_url=url.strip().rstrip("/").removesuffix("/v1"),
        api_key=api_key or os.environ.get("RADIXFLOW_API_KEY") or None,
        timeouts=timeouts,
        retry=retry or RetryPolicy(),
        max_connections=max_connections,
    )


def check_number(
    name: str, value: object, *, least: float, strictly: bool = False
) -> None:
    """Refuse what is not a finite number of at least (or above) ``least``.

    Raises:
        InvalidInputError: It is not.
    """
    good = (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and (value > least if strictly else value >= least)
    )
    if not good:
        bound = "above" if strictly else "of at least"
        raise InvalidInputError(
            f"{name} is {value!r}; give a finite number {bound} {least:g}.",
            field=name,
            value=value,
        )


def check_count(name: str, value: object) -> None:
    """Refuse what is not a whole number of at least 1.

    Raises:
        InvalidInputError: It is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidInputError(
            f"{name} is {value!r}; give a whole number of at least 1.",
            field=name,
            value=value,
        )


def _check_base_url(url: str) -> None:
    if "@" in url:
        # Not quoted: what stands there is a secret.
        raise InvalidInputError(
            "base_url holds a user name or password; give api_key instead.",
            field="base_url",
        )
    if not _is_base_url(url):
        raise InvalidInputError(
            f"base_url is {url!r}; give something like {DEFAULT_BASE_URL}.",
            field="base_url",
            value=url,
        )


def _is_base_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and bool(parts.hostname)
        return named and parts.port != 0 and not set("?# ") & set(url)
    except ValueError:
        return False
