"""Settings as frozen values: where the server is, how long to wait, how often to retry.

Every value is checked when it is made. This is the only module that reads environment
variables: ``RADIXFLOW_BASE_URL`` (several with commas between them) and
``RADIXFLOW_API_KEY``, and those that httpx reads, to name them in errors. Neither the
API key nor a header shows in a repr or an error.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args
from urllib.parse import urlsplit

from radixflow_sdk._events import ClientEvent, OnResponse
from radixflow_sdk._requests import RouteChoice
from radixflow_sdk._tracing import Tracing
from radixflow_sdk._validate import (
    check_callable,
    check_choice,
    check_count,
    check_kind,
    check_number,
    read_name,
    refuse,
)
from radixflow_sdk.exceptions import InvalidInputError

DEFAULT_BASE_URL = "http://127.0.0.1:8000"
_NETWORK_VARIABLES = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long to wait, in seconds. None waits for ever.

    Attributes:
        connect: For a connection to the server.
        read: For the server's next byte, once connected.
        write: For the server to take the next piece of the request.
        pool: For one of the client's connections to become free.
        total: For a group's own work, with all its retries and the waits between them.
            Waiting for one of the client's connections to become free is not counted.

    Raises:
        InvalidInputError: A value is not a positive, finite number.
    """

    connect: float | None = 10.0
    read: float | None = 300.0
    write: float | None = 300.0
    pool: float | None = None
    total: float | None = 600.0

    def __post_init__(self) -> None:
        for name in ("connect", "read", "write", "pool", "total"):
            value = getattr(self, name)
            if value is not None:
                check_number(f"timeout.{name}", value, minimum=0.0, strictly=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how patiently one group is sent again.

    Retried are connections that fail, the statuses 408, 409, 425, 429 and 5xx (501
    excepted), broken streams and branches that failed retryably; only the missing
    branches are sent again. The wait before attempt n + 1 is uniform between 0 and
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
            check_number(f"retry.{name}", getattr(self, name), minimum=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where the server is, and how one client talks to it.

    Raises:
        InvalidInputError: A value is not usable.
    """

    base_urls: tuple[str, ...]
    api_key: str | None = field(repr=False)
    timeouts: Timeouts
    retry: RetryPolicy
    max_connections: int
    route: RouteChoice = "auto"

    def __post_init__(self) -> None:
        for url in self.base_urls:
            _check_base_url(url)
        if not self.base_urls:
            raise refuse("base_url", self.base_urls, "give at least one")
        check_kind("retry", self.retry, RetryPolicy)
        check_count("max_connections", self.max_connections)
        check_choice("route", self.route, get_args(RouteChoice))
        key = self.api_key
        # A blank in a header value would surface later, in an error that quotes the
        # key.
        if key is not None and not (_is_header_value(key) and key.strip()):
            raise InvalidInputError(
                "api_key is empty or has characters that a header cannot hold; give "
                "the key alone.",
                field="api_key",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """What `RadixFlowClient.with_options` changes, for one view of a client.

    Raises:
        InvalidInputError: A value is not usable.
    """

    model: str | None
    cache_salt: str | None
    total: float | None
    retry: RetryPolicy
    extra_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    extra_body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    on_event: Callable[[ClientEvent], None] | None = None
    on_response: OnResponse | None = None
    tracing: Tracing | None = None

    def __post_init__(self) -> None:
        if self.model is not None:
            read_name("model", self.model, 4096)
        if self.cache_salt is not None:
            read_name("cache_salt", self.cache_salt, 256)
        if self.total is not None:
            check_number("timeout", self.total, minimum=0.0, strictly=True)
        check_kind("retry", self.retry, RetryPolicy)
        check_callable("on_event", self.on_event)
        check_callable("on_response", self.on_response)
        for name in ("extra_headers", "extra_body"):
            if not isinstance(getattr(self, name), Mapping):  # not quoted, see below
                raise InvalidInputError(f"{name} is no mapping; give one.", field=name)
        for name, value in self.extra_headers.items():
            # Neither is quoted: a header may be a secret.
            if not (_HEADER_NAME.fullmatch(str(name)) and _is_header_value(value)):
                raise InvalidInputError(
                    "extra_headers has a name or value that a header cannot hold; "
                    "give printable ASCII text.",
                    field="extra_headers",
                )
        try:
            body = dict(self.extra_body)
            json.dumps(body, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInputError(
                f"extra_body is not JSON ({error}); give plain values.",
                field="extra_body",
            ) from None


def read_settings(
    *,
    base_url: str | Sequence[str] | None,
    api_key: str | None = None,
    timeout: Timeouts | float | None = None,
    retry: RetryPolicy | None = None,
    max_connections: int = 1,
    route: RouteChoice = "auto",
) -> Settings:
    """Fill what was left out from the environment and the defaults.

    Raises:
        InvalidInputError: A value is not usable.
    """
    if base_url is None or base_url == "":
        base_url = os.environ.get("RADIXFLOW_BASE_URL") or DEFAULT_BASE_URL
    urls = base_url.split(",") if isinstance(base_url, str) else base_url
    if not isinstance(urls, Sequence):
        raise refuse("base_url", base_url, f"give something like {DEFAULT_BASE_URL}")
    if "" in [str(url).strip() for url in urls]:
        raise refuse("base_url", base_url, "remove the empty entry or comma")
    if isinstance(timeout, Timeouts):
        timeouts = timeout
    else:
        timeouts = Timeouts() if timeout is None else Timeouts(total=timeout)
    return Settings(
        # OpenAI clients are given the URL with /v1; taking both saves a wrong 404.
        base_urls=tuple(
            dict.fromkeys(
                str(url).strip().rstrip("/").removesuffix("/v1") for url in urls
            )
        ),
        api_key=api_key or os.environ.get("RADIXFLOW_API_KEY") or None,
        timeouts=timeouts,
        retry=RetryPolicy() if retry is None else retry,
        max_connections=max_connections,
        route=route,
    )


def read_network_variables() -> dict[str, str]:
    """The environment variables that httpx reads, those that are set."""
    names = (*_NETWORK_VARIABLES, *map(str.lower, _NETWORK_VARIABLES))
    return {name: value for name in names if (value := os.environ.get(name))}


def _is_header_value(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and value.isprintable()


def _check_base_url(url: str) -> None:
    if "@" in url:
        # Not quoted: what stands there is a secret.
        raise InvalidInputError(
            "base_url holds a user name or password; give api_key instead.",
            field="base_url",
        )
    if not url.isprintable():
        raise refuse("base_url", url, "remove the control character")
    if not _is_base_url(url):
        raise refuse("base_url", url, f"give something like {DEFAULT_BASE_URL}")


def _is_base_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        named = parts.scheme in ("http", "https") and bool(parts.hostname)
        if named and url.isascii():
            str(parts.hostname).encode("idna")  # empty labels, and those over 63
        return named and parts.port != 0 and not set("?# ") & set(url)
    except ValueError:
        return False
