"""Errors of the environment variables that httpx reads, by their names.

httpx reads proxies and certificates while a client is made, and raises whatever a bad
value leads to: ImportError, ValueError, InvalidURL, OSError.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from typing import TypeVar

import httpx

from radixflow_sdk._config import read_network_variables
from radixflow_sdk._validate import refuse
from radixflow_sdk.exceptions import InvalidInputError

T = TypeVar("T")

_USER = re.compile("//[^/@]*@")


def from_environment(make: Callable[[], T]) -> T:
    """What `make` makes with httpx.

    Raises:
        InvalidInputError: An environment variable has a value that httpx cannot use.
    """
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - of any class
        raise _blame(error) from None


def _blame(error: Exception) -> InvalidInputError:
    variables = read_network_variables()
    for name, value in variables.items():
        why = _trouble(name.lower(), value)
        if why is not None:
            shown = _USER.sub("//***@", value)  # a password may stand there
            return refuse(name, shown, f"{why}; correct the environment variable")
    return InvalidInputError(
        f"httpx could not be set up ({type(error).__name__}: {error}); check the "
        f"environment's {', '.join(variables) or 'certificates'}."
    )


def _trouble(name: str, value: str) -> str | None:
    """What is wrong with a variable's value, or None."""
    try:
        if name == "ssl_cert_file":
            ssl.create_default_context(cafile=value)
        elif name == "ssl_cert_dir":
            ssl.create_default_context(capath=value)
        elif name == "no_proxy":
            for host in value.split(","):
                httpx.URL(f"http://{host.strip() or 'host'}")
                if "[" in host:
                    return "httpx takes an IPv6 address without brackets"
        else:
            proxy = value if "://" in value else f"http://{value}"
            httpx.AsyncHTTPTransport(proxy=httpx.Proxy(proxy))
    except ImportError:
        return "this proxy needs `pip install 'httpx[socks]'`"
    except (OSError, ValueError, httpx.InvalidURL) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        return f"it cannot be used ({reason or type(error).__name__})"
    return None
