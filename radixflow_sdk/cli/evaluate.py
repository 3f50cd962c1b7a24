"""``radixflow eval``: accuracies of a multiple-choice file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from radixflow_sdk._config import Settings, read_settings
from radixflow_sdk._requests import Normalize
from radixflow_sdk.cli._shared import BaseUrl, ScoringName, in_flags, progress_bar
from radixflow_sdk.evals.files import Question, read_questions
from radixflow_sdk.evals.limits import INTERRUPTED, exit_status, missed, read_limit
from radixflow_sdk.evals.measures import Measures
from radixflow_sdk.evals.output import check_apart, check_writable, results_path
from radixflow_sdk.evals.report import page
from radixflow_sdk.evals.run import Results, Setup, evaluate
from radixflow_sdk.evals.summary import summarize
from radixflow_sdk.exceptions import APIError

SHOWN = 10


def evaluate_file(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            help="Questions as JSON lines (QuALITY's and RACE's formats too), or a "
            "folder of such files."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            help="One line for each answered question; a run goes on where it ended. "
            "Else FILE's name with .results.jsonl, in this folder."
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            help="Write an HTML page there: diagrams, what failed, what was wrong."
        ),
    ] = None,
    scoring: Annotated[ScoringName, typer.Option()] = ScoringName.likelihood,
    unconditional: Annotated[
        str | None,
        typer.Option(help="For pmi: what stands before an option without document."),
    ] = None,
    fail_under: Annotated[
        list[str] | None,
        typer.Option(
            help="As char=0.6: end with 3 where that accuracy is lower. Repeatable."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first so many questions.")
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin anew; earlier results are lost.")
    ] = False,
    base_url: BaseUrl = None,
    model: Annotated[str | None, typer.Option(help="A served model.")] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Questions under way at a time.")
    ] = 16,
    timeout: Annotated[float | None, typer.Option(help="Seconds a question.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Accuracies of a multiple-choice file, under every normalizer in one pass.

    Ends with 1 where a question failed or the server could not be asked, with 3 where
    an accuracy is under its limit.
    """
    setup = Setup(scoring=scoring.value, unconditional=unconditional)
    limits = [read_limit(words, setup) for words in fail_under or ()]
    settings = read_settings(
        base_url=base_url, timeout=timeout, max_connections=concurrency
    )
    odd: list[str] = []
    everything = read_questions(file, warn=odd.append)
    _tell_some([f"note: {sentence}" for sentence in odd], "notes")
    questions = everything[:limit]
    path = output or results_path(file)
    check_apart("output", path, {"question file": file})
    if report is not None:
        check_apart("report", report, {"question file": file, "results file": path})
        check_writable(report)
    again = f"the same command{' without --restart' if restart else ''} goes on"
    with Results(path, setup, everything, restart=restart) as results:
        stopped = _ask(settings, questions, setup, results, model=model, again=again)
    summary = summarize(file.resolve().name, setup, questions, results, stopped=stopped)
    reasons = [in_flags(line, context) for line in summary.reasons]
    _tell_some(reasons, "reasons of failures")
    if (why := summary.why_stopped(again)) is not None:
        typer.echo(f"radixflow: {in_flags(why, context)}", err=True)
    if as_json:
        typer.echo(json.dumps(summary.as_json()))
    elif summary.answered:
        typer.echo(f"{summary.headline}; details in {path}")
        _show_measures(summary.measures)
    if report is not None:
        _write_report(report, page(summary), quiet=as_json)
    for sentence in missed(summary, limits):
        typer.echo(f"radixflow: {sentence}", err=True)
    raise typer.Exit(exit_status(summary, limits))


def _ask(
    settings: Settings,
    questions: Sequence[Question],
    setup: Setup,
    results: Results,
    *,
    model: str | None,
    again: str,
) -> str | None:
    """Ask, behind a bar; say why it ended early, where the server could not be asked.

    Raises:
        InvalidInputError: It would be another model than the results'.
        typer.Exit: Ctrl-C.
    """

    def done() -> int:
        return sum(question.qid in results.records for question in questions)

    try:
        with progress_bar() as bar:
            task = bar.add_task("questions", total=len(questions), completed=done())
            evaluate(
                settings,
                questions,
                setup,
                results,
                model=model,
                done=lambda: bar.advance(task),
            )
    except APIError as error:
        return str(error).removesuffix(".")
    except KeyboardInterrupt:
        typer.echo(
            f"radixflow: stopped; {done()} of {len(questions)} are in {results.path}; "
            f"{again}",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    return None


def _tell_some(lines: Sequence[str], what: str) -> None:
    for line in lines[:SHOWN]:
        typer.echo(f"radixflow: {line}", err=True)
    if len(lines) > SHOWN:
        typer.echo(f"radixflow: {len(lines) - SHOWN} more {what}", err=True)


def _write_report(path: Path, text: str, *, quiet: bool) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        typer.echo(f"radixflow: report {str(path)!r}: {error.strerror}", err=True)
        raise typer.Exit(2) from None
    if not quiet:
        typer.echo(f"report in {path}")


def _show_measures(measures: Mapping[Normalize, Measures]) -> None:
    table = Table("normalizer", "accuracy", "95%", "chance", "tied", "Brier", "ECE")
    for name, found in measures.items():
        table.add_row(
            name,
            f"{found.accuracy:.3f}",
            f"{found.low:.3f}-{found.high:.3f}",
            f"{found.chance:.3f}",
            str(found.tied),
            f"{found.brier:.3f}",
            f"{found.ece:.3f}",
        )
    Console().print(table)
