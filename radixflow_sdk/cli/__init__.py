"""The command line: ``radixflow score``, ``serve``, ``doctor``, ``bench`` and others.

One module for each command.
"""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

try:
    import rich  # noqa: F401 - the commands need it
    import typer
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"The command line needs {missing.name}: pip install 'radixflow-sdk[cli]'."
    ) from None

from radixflow_sdk.cli import bench, calibrate, doctor, evaluate, passthrough, score
from radixflow_sdk.cli._shared import Command

__all__ = ["app", "main"]

app = typer.Typer(
    name="radixflow",
    help="Given this document: which of these candidates?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"radixflow {metadata.version('radixflow-sdk')}")
        raise typer.Exit


@app.callback()
def _radixflow(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="Show the version."
        ),
    ] = False,
) -> None:
    pass


app.command("score", cls=Command)(score.score)
app.command("doctor", cls=Command)(doctor.doctor)
app.command("bench", cls=Command)(bench.bench)
app.command("eval", cls=Command)(evaluate.evaluate_file)
app.command("calibrate", cls=Command)(calibrate.calibrate)
for _name, _run, _help in (
    (
        "lm-eval",
        passthrough.lm_eval,
        "lm-evaluation-harness with the model `radixflow` (try --help).",
    ),
    (
        "serve",
        passthrough.serve,
        "Start a server; all arguments go to the server (try --help).",
    ),
    (
        "replay",
        passthrough.replay,
        "Replay policies on the real scheduler, without a model (try --help).",
    ),
):
    app.command(
        _name,
        help=_help,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        add_help_option=False,
    )(_run)


def main() -> None:
    """Run the command line (the console script ``radixflow``)."""
    app()
