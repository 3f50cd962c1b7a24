"""Read a request's body within bounds on bytes and time.

A body that is too long or too slow is refused while it arrives, and the connection is
closed.
"""

from __future__ import annotations

import anyio
from fastapi import Request
from starlette.requests import ClientDisconnect

from server_ext.api.protocol import RequestRefused, shortened

__all__ = ["read_body"]


async def read_body(http: Request, *, max_bytes: int, seconds: float) -> bytes:
    """The whole body.

    Args:
        http: the request.
        max_bytes: maximum length.
        seconds: maximum time until its last byte.

    Raises:
        RequestRefused: 415 for a body that is not declared as JSON; 413 for one over
            `max_bytes`, at once where its length is declared; 408 for one that is not
            complete after `seconds`; 400 where the client disconnected.
    """
    _check_media_type(http.headers.get("content-type", ""))
    length = http.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        with anyio.fail_after(seconds):
            async for chunk in http.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise _too_large(max_bytes)
    except TimeoutError:
        raise RequestRefused(
            408,
            "body_too_slow",
            f"the body was not whole after {seconds:g} s ({len(body)} bytes came): "
            "send it again, or fewer branches a group",
        ) from None
    except ClientDisconnect:
        raise RequestRefused(
            400, "body_cut", f"the client went away after {len(body)} bytes"
        ) from None
    return bytes(body)


def _check_media_type(declared: str) -> None:
    """Take JSON alone.

    A web page can send a text or a form to any server that its reader's browser
    reaches; for JSON the browser first asks that server (a CORS preflight).
    """
    media_type = declared.partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise RequestRefused(
            415,
            "unsupported_media_type",
            f"Content-Type: {shortened(media_type)} is not application/json: "
            "send the body as JSON",
            "Content-Type",
        )


def _too_large(max_bytes: int) -> RequestRefused:
    return RequestRefused(
        413,
        "body_too_large",
        f"the body is over {max_bytes} bytes: send fewer branches a group",
    )
