"""``radixflow doctor``: diagnose a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import anyio
import typer

from radixflow_sdk._config import read_settings
from radixflow_sdk._doctor import examine
from radixflow_sdk.cli._shared import AlsoUrl, Url, in_flags, one_server, read_document
from radixflow_sdk.exceptions import InvalidInputError

_LEVELS = {"ok": "  ok", "note": "note", "warn": "WARN", "bad": " BAD"}


def doctor(
    context: typer.Context,
    url: Url = None,
    base_url: AlsoUrl = None,
    document: Annotated[
        Path | None,
        typer.Option(help="Text file of a typical length, '-' for stdin."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="A served model.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for each check.")] = 120.0,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact", help="Also compare cached with uncached scores (minutes)."
        ),
    ] = False,
) -> None:
    """Diagnose a server: what is wrong, and what to change.

    Exit status 1: something is BAD. A WARN only costs speed.
    """
    servers = read_settings(base_url=one_server(url, base_url)).base_urls
    text = None if document is None else read_document(document)
    if text == "":
        raise InvalidInputError(
            f"document is {str(document)!r}, which is empty; name a file with a text "
            "of a typical length.",
            field="document",
            value=str(document),
        )

    async def check() -> bool:
        good = True
        for server in servers:
            if len(servers) > 1:
                typer.echo(server)
            async for finding in examine(
                server, model=model, document=text, timeout=timeout, exact=exact
            ):
                typer.echo(f"{_LEVELS[finding.level]}  {finding.what}")
                if finding.change:
                    typer.echo(f"      -> {in_flags(finding.change, context)}")
                good = good and finding.level != "bad"
        return good

    raise typer.Exit(0 if anyio.run(check) else 1)
