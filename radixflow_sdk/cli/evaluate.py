"""``radixflow eval``: accuracies of a multiple-choice file."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from radixflow_sdk._config import read_settings
from radixflow_sdk._requests import Normalize
from radixflow_sdk.cli._shared import BaseUrl, ScoringName, in_flags, progress_bar
from radixflow_sdk.evals.compare import compare
from radixflow_sdk.evals.evaluation import Evaluation, Finished
from radixflow_sdk.evals.files import read_questions
from radixflow_sdk.evals.formats import read_format
from radixflow_sdk.evals.limits import INTERRUPTED, read_limit
from radixflow_sdk.evals.measures import Measures
from radixflow_sdk.evals.output import (
    check_apart,
    check_writable,
    name_of,
    results_path,
)
from radixflow_sdk.evals.prompts import read_style
from radixflow_sdk.evals.report import page
from radixflow_sdk.evals.run import Results, Setup
from radixflow_sdk.exceptions import InvalidInputError

SHOWN = 10


class TooLong(StrEnum):
    """What becomes of questions that do not fit the model's context."""

    fail = "fail"
    skip = "skip"


def evaluate_file(
    context: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Questions: JSON lines, a JSON array, CSV, TSV or Parquet, in our "
            "format or as published; a folder of such files; - for standard input. "
            "Several files are subsets.",
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
            help="Write an HTML page there: setup, figures, failures, every question."
        ),
    ] = None,
    scoring: Annotated[ScoringName, typer.Option()] = ScoringName.likelihood,
    format_: Annotated[
        str | None,
        typer.Option("--format", help="The files' format; else by their keys."),
    ] = None,
    map_: Annotated[
        str | None,
        typer.Option(
            "--map",
            help="Keys of another format, as "
            "question=stem,options=choices.text,gold=answerKey.",
        ),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            help="The prompt: a file with {{question}} and {{document}}, or the name "
            "of an lm-evaluation-harness task such as arc, mmlu or hellaswag."
        ),
    ] = None,
    shots: Annotated[
        int, typer.Option(min=0, help="Examples before every question.")
    ] = 0,
    shots_from: Annotated[
        Path | None, typer.Option(help="Where the examples come from; else FILE.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Draw the examples; else the first ones.")
    ] = None,
    description: Annotated[str, typer.Option(help="Text before everything else.")] = "",
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
    too_long: Annotated[
        TooLong,
        typer.Option(help="What becomes of questions that do not fit the context."),
    ] = TooLong.fail,
    compare_: Annotated[
        bool,
        typer.Option("--compare", help="Compare two results files; nothing is asked."),
    ] = False,
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
    if compare_:
        _compare(files, as_json=as_json)
        return
    setup = Setup(scoring=scoring.value, unconditional=unconditional)
    limits = [read_limit(words, setup) for words in fail_under or ()]
    settings = read_settings(
        base_url=base_url, timeout=timeout, max_connections=concurrency
    )
    odd: list[str] = []
    reads = read_format(format_, map_)
    questions = read_questions(files, reads=reads, warn=odd.append)
    _tell_some([f"note: {sentence}" for sentence in odd], "notes")
    examples = questions
    if shots_from is not None:
        examples = read_questions(shots_from, reads=reads)
    style = read_style(template, examples, shots, seed, description)
    run = Evaluation(
        name=name_of(files),
        questions=questions,
        setup=replace(setup, style=style),
        settings=settings,
        output=output or results_path(files),
        limit=limit,
        limits=limits,
        model=model,
        restart=restart,
        skip_too_long=too_long is TooLong.skip,
    )
    others = [("question file", file) for file in files]
    check_apart("output", run.output, others)
    if report is not None:
        check_apart("report", report, [*others, ("results file", run.output)])
        check_writable(report)
    again = f"the same command{' without --restart' if restart else ''} goes on"
    with run.open() as results:
        finished = _ask(run, results)
        if finished.status == INTERRUPTED:
            typer.echo(
                f"radixflow: stopped; {run.answered(results)} of {len(run.asked)} are "
                f"in {run.output}; {again}",
                err=True,
            )
            raise typer.Exit(INTERRUPTED)
    summary = finished.summary
    reasons = [in_flags(line, context) for line in summary.reasons]
    _tell_some(reasons, "reasons of failures")
    if (why := summary.why_stopped(again)) is not None:
        typer.echo(f"radixflow: {in_flags(why, context)}", err=True)
    if as_json:
        typer.echo(json.dumps(summary.as_json()))
    elif summary.answered:
        typer.echo(f"{summary.headline}; details in {run.output}")
        _show_measures(summary.measures)
    if report is not None:
        command = shlex.join(["radixflow", *sys.argv[1:]])
        _write_report(report, page(summary, command=command), quiet=as_json)
    for sentence in finished.below:
        typer.echo(f"radixflow: {sentence}", err=True)
    raise typer.Exit(finished.status)


def _compare(files: Sequence[Path], *, as_json: bool) -> None:
    if len(files) != 2:
        raise InvalidInputError(
            f"compare is given {len(files)} files; name two results files.",
            field="compare",
            value=len(files),
        )
    found = compare(*files)
    if as_json:
        typer.echo(json.dumps(found.as_json()))
        return
    rest = f"; {found.left_out} answered by one alone" if found.left_out else ""
    typer.echo(f"{found.questions} questions in both{rest}")
    table = Table("normalizer", "first", "second", "difference (95%)", "McNemar p")
    for name, own in found.differences.items():
        table.add_row(
            name,
            f"{own.first:.3f}",
            f"{own.second:.3f}",
            f"{own.second - own.first:+.3f} ({own.low:+.3f} to {own.high:+.3f})",
            f"{own.p:.3g} (+{len(own.gained)} -{len(own.lost)})",
        )
    Console().print(table)
    for name, own in found.differences.items():
        for verb, names in (("gained", own.gained), ("lost", own.lost)):
            if names:
                more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
                typer.echo(f"{name} {verb}: {', '.join(names[:SHOWN])}{more}")


def _ask(run: Evaluation, results: Results) -> Finished:
    """Ask, behind a progress bar."""
    damaged = [f"line {number}" for number in results.damaged]
    if damaged:
        typer.echo(
            f"radixflow: note: {run.output}: {', '.join(damaged[:SHOWN])} cannot be "
            "read; a question without another line is asked again",
            err=True,
        )
    with progress_bar() as bar:
        task = bar.add_task(
            "questions", total=len(run.asked), completed=run.answered(results)
        )
        return run.run(results, lambda: bar.advance(task))


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
