"""What the commands share: options, and the sentences of errors."""

from __future__ import annotations

import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from typer.core import TyperCommand

from radixflow_sdk._config import DEFAULT_BASE_URL
from radixflow_sdk.exceptions import InvalidInputError, RadixFlowError


class ScoringName(StrEnum):
    """What is read from the model."""

    likelihood = "likelihood"
    label = "label"


class NormalizeName(StrEnum):
    """How log-probabilities become a score."""

    sum = "sum"
    mean = "mean"
    char = "char"
    byte = "byte"
    pmi = "pmi"
    label = "label"


_SERVER = (
    f"The server; else RADIXFLOW_BASE_URL, else {DEFAULT_BASE_URL}. "
    "RADIXFLOW_API_KEY has its key."
)
BaseUrl = Annotated[str | None, typer.Option("--base-url", metavar="URL", help=_SERVER)]
Url = Annotated[str | None, typer.Argument(metavar="URL", help=_SERVER)]
AlsoUrl = Annotated[
    str | None, typer.Option("--base-url", metavar="URL", help="The same as URL.")
]


_STANDS_FOR = {
    "url": "base_url",
    "option": "options",
    "concurrency": "max_connections",
    "timeout": "timeout.total",
}
"""What the SDK calls that which a parameter here has another name for."""
_NAMED = re.compile(r"Timeouts\.total|[a-z_]+(?==')")


class Command(TyperCommand):
    """A command whose errors are one sentence each and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except RadixFlowError as error:
            field = error.field if isinstance(error, InvalidInputError) else None
            sentence = in_flags(str(error), ctx, field or "")
            typer.echo(f"radixflow: {sentence}", err=True)
            raise typer.Exit(1 if field is None else 2) from None


def in_flags(sentence: str, context: typer.Context, field: str = "") -> str:
    """A sentence of the SDK's with the command's flags for the SDK's parameters.

    Args:
        sentence: The sentence.
        context: The command.
        field: The parameter that the sentence begins with, if it does.
    """
    names = {"api_key": "RADIXFLOW_API_KEY"}
    for one in context.command.params:
        own, is_flag = str(one.name), one.opts[0].startswith("-")
        flag = one.opts[0] if is_flag else one.metavar or own.upper()
        names = {own: flag, _STANDS_FOR.get(own, own): flag} | names
    name = names.get(field.partition("[")[0])
    if name and sentence.startswith(f"{field} "):
        rest = sentence[len(field) :]
        missing = rest.startswith(" is None;")
        sentence = name + (rest.replace("None", "missing", 1) if missing else rest)
    names["Timeouts.total"] = names.get("timeout.total", "Timeouts.total")
    return _NAMED.sub(lambda found: names.get(found[0], found[0]), sentence)


def one_server(url: str | None, base_url: str | None) -> str | None:
    if url is not None and base_url is not None:
        raise InvalidInputError(
            f"base_url is {url!r} and again {base_url!r}; give one of URL and "
            "--base-url.",
            field="base_url",
            value=base_url,
        )
    return url if base_url is None else base_url


def read_document(path: Path) -> str:
    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        return raw.decode().removesuffix("\n")
    except OSError as error:
        problem = error.strerror or "cannot be read"
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 at byte {error.start}"
    raise InvalidInputError(
        f"document is {str(path)!r}: {problem}; name a text file in UTF-8.",
        field="document",
        value=str(path),
    )


def progress_bar() -> Progress:
    return Progress(
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
