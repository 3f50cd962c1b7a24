"""``GET /radixflow``: a live page of the scheduler, off unless enabled.

A browser cannot send a key with a page's address, so the page itself is the same on
every server and holds no data. It reads its data under ``/v1/``, which vLLM's
``--api-key`` guards, and ``--admin-key`` where there is one, with the key that the user
enters. It loads nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib import resources

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

__all__ = ["router"]

router = APIRouter(tags=["radixflow"])


@router.get("/radixflow", response_class=HTMLResponse)
async def page() -> HTMLResponse:
    """The page, and a policy under which only its own script runs."""
    text, allowed = _page()
    return HTMLResponse(
        text,
        headers={
            "Content-Security-Policy": allowed,
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        },
    )


@cache
def _page() -> tuple[str, str]:
    """Its text, and the policy that names its script."""
    file = resources.files("server_ext.api").joinpath("page.html")
    text = file.read_text(encoding="utf-8")
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    allowed = (
        "default-src 'none'",
        f"script-src 'sha256-{digest}'",
        "style-src 'unsafe-inline'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
    return text, "; ".join(allowed)
