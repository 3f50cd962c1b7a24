"""``serve``, ``replay`` and ``lm-eval``: hand on everything after the name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def _extra(what: str, name: str) -> Iterator[None]:
    """Say which extra is missing where a module of it is.

    Raises:
        typer.Exit: one is.
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
    """Hand the rest of the command line to lm-evaluation-harness."""
    with _extra("lm-eval", "eval"):
        harness = importlib.import_module("radixflow_sdk.evals.harness")
    harness.main(list(context.args))


def serve(context: typer.Context) -> None:
    """Hand the rest of the command line to the server extension."""
    with _extra("serving", "server"):
        launcher = importlib.import_module("server_ext.serve")
    raise typer.Exit(launcher.main(list(context.args)))


def replay(context: typer.Context) -> None:
    """Hand the rest of the command line to the replay."""
    with _extra("the replay", "server,replay"):
        lab = importlib.import_module("server_ext.replay")
        status = lab.main(list(context.args))
    raise typer.Exit(status)
