"""``serve``, ``replay`` and ``lm-eval``: pass all arguments on."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def _extra(what: str, name: str) -> Iterator[None]:
    """Name the missing extra where one of its modules is not installed.

    Raises:
        typer.Exit: A module is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        typer.echo(
            f"radixflow: {what} needs {error.name}, which is not installed; "
            f"pip install 'radixflow-sdk[{name}]'.",
            err=True,
        )
        raise typer.Exit(1) from None


def lm_eval(context: typer.Context) -> None:
    """Run lm-evaluation-harness with the other arguments."""
    with _extra("lm-eval", "eval"):
        harness = importlib.import_module("radixflow_sdk.evals.harness")
    harness.main(list(context.args))


def serve(context: typer.Context) -> None:
    """Run the server with the other arguments."""
    with _extra("serving", "server"):
        launcher = importlib.import_module("server_ext.serve")
    raise typer.Exit(launcher.main(list(context.args)))


def replay(context: typer.Context) -> None:
    """Run the replay with the other arguments."""
    with _extra("the replay", "server,replay"):
        lab = importlib.import_module("server_ext.replay")
        status = lab.main(list(context.args))
    raise typer.Exit(status)
