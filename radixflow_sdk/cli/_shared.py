"""Shared by the commands: options, files, and errors as sentences."""

from __future__ import annotations

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
    """The kinds of scoring."""

    likelihood = "likelihood"
    label = "label"


class NormalizeName(StrEnum):
    """The normalizers."""

    sum = "sum"
    mean = "mean"
    char = "char"
    byte = "byte"
    pmi = "pmi"
    label = "label"


_SERVER = (
    f"The server; else RADIXFLOW_BASE_URL, else {DEFAULT_BASE_URL}. "
    "RADIXFLOW_API_KEY holds its key."
)
BaseUrl = Annotated[str | None, typer.Option("--base-url", metavar="URL", help=_SERVER)]
Url = Annotated[str | None, typer.Argument(metavar="URL", help=_SERVER)]
AlsoUrl = Annotated[
    str | None, typer.Option("--base-url", metavar="URL", help="The same as URL.")
]


_SDK_NAMES = {
    "url": "base_url",
    "option": "options",
    "concurrency": "max_connections",
    "timeout": "timeout.total",
}
"""The SDK's names of parameters that have another name on the command line."""


class Command(TyperCommand):
    """A command whose errors are one sentence each and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except RadixFlowError as error:
            typer.echo(f"radixflow: {in_flags(error, ctx)}", err=True)
            wrong_input = isinstance(error, InvalidInputError)
            raise typer.Exit(2 if wrong_input else 1) from None


def in_flags(error: RadixFlowError | str, context: typer.Context) -> str:
    """An error's sentence with the command's flags in place of the SDK's parameters.

    Args:
        error: The error, or the sentence of one.
        context: The command.
    """
    flags = _flags(context)
    total = flags.get("timeout.total", "Timeouts.total")
    sentence = str(error).replace("Timeouts.total", total)
    if not isinstance(error, InvalidInputError):
        return sentence
    problem, separator, advice = sentence.rpartition("; ")
    for name in error.mentions:  # never in the problem, which may quote user input
        advice = advice.replace(f"{name}=", f"{flags.get(name, name)}=")
    flag = flags.get(error.field.partition("[")[0])
    if flag and problem.startswith(f"{error.field} "):
        problem = flag + problem.removeprefix(error.field)
        if problem == f"{flag} is None":
            problem = f"{flag} is missing"
    return f"{problem}{separator}{advice}"


def _flags(context: typer.Context) -> dict[str, str]:
    """The command's spelling of each of the SDK's parameters."""
    flags = {"api_key": "RADIXFLOW_API_KEY"}
    for parameter in context.command.params:
        name, first = str(parameter.name), parameter.opts[0]
        is_flag = first.startswith("-")
        flag = first if is_flag else parameter.metavar or name.upper()
        # Where two parameters mean the same (URL and --base-url), the first one counts.
        name = name.removesuffix("_")  # as map_, which would hide a builtin
        flags = {name: flag, _SDK_NAMES.get(name, name): flag} | flags
    return flags


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
