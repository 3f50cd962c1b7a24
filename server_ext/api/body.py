"""A request's body, read within bounds: so many bytes, in so much time.

What comes too late or is too long is refused while it comes, and the connection is
closed: nothing of ours waits for the rest.
"""

from __future__ import annotations

import anyio
from fastapi import Request
from starlette.requests import ClientDisconnect

from server_ext.api.protocol import RequestRefused, shortened

__all__ = ["read_body"]


async def read_body(http: Request, *, most: int, seconds: float) -> bytes:
    """The whole body.

    Args:
        http: the request.
        most: bytes that it may have.
        seconds: from now to its last byte.

    Raises:
        RequestRefused: 415 for a body that is not declared as JSON; 413 for one over
            `most` bytes, at once where its length is known beforehand; 408 for one that
            is not whole in `seconds`; 400 where the client went away (nobody reads
            that answer).
    """
    _check_media_type(http.headers.get("content-type", ""))
    length = http.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:20]) > most:
        raise _too_large(most)
    body = bytearray()
    try:
        with anyio.fail_after(seconds):
            async for chunk in http.stream():
                body += chunk
                if len(body) > most:
                    raise _too_large(most)
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


def _too_large(most: int) -> RequestRefused:
    return RequestRefused(
        413,
        "body_too_large",
        f"the body is over {most} bytes: send fewer branches a group",
    )
