"""The command line: ``radixflow score``, ``serve``, ``doctor``, ``bench`` and others.

``serve``, ``replay`` and ``lm-eval`` hand on everything after them, untouched. What
belongs to an extra is missed with a sentence and not with a traceback. This room must
not score, serve or measure by itself, and is the only one that writes to the terminal.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import anyio

from radixflow_sdk._bench import Figures, Load, measure
from radixflow_sdk._config import DEFAULT_BASE_URL, Settings, read_settings
from radixflow_sdk._doctor import examine
from radixflow_sdk.evals.files import Question, read_questions
from radixflow_sdk.evals.measures import Measures
from radixflow_sdk.evals.report import PAGE_BEGINS, page
from radixflow_sdk.evals.run import Results, Setup, evaluate
from radixflow_sdk.evals.summary import Summary, summarise
from radixflow_sdk.exceptions import APIError, InvalidInputError, RadixFlowError
from radixflow_sdk.sync import RadixFlow
from radixflow_sdk.types import Normalize, ScoreResult

try:
    import typer
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TimeRemainingColumn,
    )
    from rich.table import Table
    from rich.text import Text
    from typer.core import TyperCommand
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"The command line needs {missing.name}: pip install 'radixflow-sdk[cli]'."
    ) from None

app = typer.Typer(
    name="radixflow",
    help="Given this document: which of these candidates?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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


BELOW = 3
"""Exit status of an evaluation whose accuracy is under a ``--fail-under``."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as the shells have it."""

SHOWN = 10

_LEVELS = {"ok": "  ok", "note": "note", "warn": "WARN", "bad": " BAD"}

_SERVER = (
    f"The server; else RADIXFLOW_BASE_URL, else {DEFAULT_BASE_URL}. "
    "RADIXFLOW_API_KEY has its key."
)
_BaseUrl = Annotated[
    str | None, typer.Option("--base-url", metavar="URL", help=_SERVER)
]
_Url = Annotated[str | None, typer.Argument(metavar="URL", help=_SERVER)]
_AlsoUrl = Annotated[
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


class _Command(TyperCommand):
    """A command whose errors are one sentence each and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except RadixFlowError as error:
            field = error.field if isinstance(error, InvalidInputError) else None
            told = _in_flags(str(error), ctx, field or "")
            typer.echo(f"radixflow: {told}", err=True)
            raise typer.Exit(1 if field is None else 2) from None


def _in_flags(told: str, context: typer.Context, field: str = "") -> str:
    """A sentence of the SDK's with the command's flags for the SDK's parameters.

    Args:
        told: The sentence.
        context: The command.
        field: The parameter that the sentence begins with, if it does.
    """
    names = {"api_key": "RADIXFLOW_API_KEY"}
    for one in context.command.params:
        own, is_flag = str(one.name), one.opts[0].startswith("-")
        flag = one.opts[0] if is_flag else one.metavar or own.upper()
        names = {own: flag, _STANDS_FOR.get(own, own): flag} | names
    name = names.get(field.partition("[")[0])
    if name and told.startswith(f"{field} "):
        rest = told[len(field) :]
        missing = rest.startswith(" is None;")
        told = name + (rest.replace("None", "missing", 1) if missing else rest)
    names["Timeouts.total"] = names.get("timeout.total", "Timeouts.total")
    return _NAMED.sub(lambda found: names.get(found[0], found[0]), told)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"radixflow {metadata.version('radixflow-sdk')}")
        raise typer.Exit


@app.callback()
def _radixflow(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="Say which it is."
        ),
    ] = False,
) -> None:
    pass


@app.command("score", cls=_Command)
def score(
    document: Annotated[
        Path,
        typer.Option(
            help="Text file in UTF-8, '-' for standard input; its last line break is "
            "not part of the document."
        ),
    ],
    option: Annotated[list[str], typer.Option(help="A candidate; repeatable.")],
    question: Annotated[str | None, typer.Option(help="Asked after it.")] = None,
    scoring: Annotated[ScoringName, typer.Option()] = ScoringName.likelihood,
    normalize: Annotated[NormalizeName, typer.Option()] = NormalizeName.sum,
    unconditional: Annotated[
        str | None,
        typer.Option(help="For pmi: what an option follows without the document."),
    ] = None,
    base_url: _BaseUrl = None,
    model: Annotated[str | None, typer.Option(help="A served model.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds in total.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Rank candidates for one document."""
    text = _read(document)
    with RadixFlow(base_url, model=model, timeout=timeout) as client:
        result = client.score_candidates(
            text,
            option,
            question=question,
            scoring=scoring.value,
            normalize=normalize.value,
            unconditional=unconditional,
        )
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(result), ensure_ascii=False))
    else:
        _show(result)


@app.command("doctor", cls=_Command)
def doctor(
    context: typer.Context,
    url: _Url = None,
    base_url: _AlsoUrl = None,
    document: Annotated[
        Path | None,
        typer.Option(help="Text file of the length that you will use, '-' for stdin."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="A served model.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for each look.")] = 120.0,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact", help="Also compare cached with uncached scores: some minutes."
        ),
    ] = False,
) -> None:
    """Look at a server: what is wrong with it, and what to change.

    Ends with 0 where nothing is bad, with 1 where something is; a WARN costs only
    speed.
    """
    servers = read_settings(base_url=_one_server(url, base_url)).base_urls
    text = None if document is None else _read(document)
    if text == "":
        raise InvalidInputError(
            f"document is {str(document)!r}, which is empty; name a file with a text "
            "of the length that you will use.",
            field="document",
            value=str(document),
        )

    async def look() -> bool:
        good = True
        for server in servers:
            if len(servers) > 1:
                typer.echo(server)
            async for finding in examine(
                server, model=model, document=text, timeout=timeout, exact=exact
            ):
                typer.echo(f"{_LEVELS[finding.level]}  {finding.what}")
                if finding.change:
                    typer.echo(f"      -> {_in_flags(finding.change, context)}")
                good = good and finding.level != "bad"
        return good

    raise typer.Exit(0 if anyio.run(look) else 1)


@app.command("bench", cls=_Command)
def bench(
    context: typer.Context,
    url: _Url = None,
    base_url: _AlsoUrl = None,
    groups: Annotated[int, typer.Option(help="Questions in all.")] = 64,
    options: Annotated[int, typer.Option(help="Candidates a question.")] = 4,
    documents: Annotated[int, typer.Option(help="Distinct documents.")] = 16,
    words: Annotated[int, typer.Option(help="Words a document, at random.")] = 300,
    concurrency: Annotated[
        int, typer.Option(help="Questions under way at a time.")
    ] = 16,
    model: Annotated[str | None, typer.Option(help="A served model.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds a question.")] = 300.0,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """A small load on a running server: pace, latency, reuse, rounds.

    Of this machine, this client and whatever else the server does meanwhile; ends with
    1 where a question failed.
    """
    load = Load(
        groups=groups,
        options=options,
        documents=documents,
        words=words,
        concurrency=concurrency,
    )
    settings = read_settings(
        base_url=_one_server(url, base_url),
        timeout=timeout,
        max_connections=concurrency,
    )
    with _bar() as bar:
        task = bar.add_task("questions", total=groups)
        figures = anyio.run(
            lambda: measure(
                settings,
                load,
                model=model,
                progress=lambda seen: bar.update(task, completed=seen.done),
            )
        )
    if figures.error is not None:
        why = _in_flags(figures.error, context)
        told = f"radixflow: {figures.failed} of {groups} failed; first: {why}"
        typer.echo(told, err=True)
    if as_json:
        both = {"load": dataclasses.asdict(load), "seen": dataclasses.asdict(figures)}
        typer.echo(json.dumps(both))
    elif figures.groups:
        _show_figures(load, figures)
    raise typer.Exit(1 if figures.failed else 0)


@app.command("eval", cls=_Command)
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
    base_url: _BaseUrl = None,
    model: Annotated[str | None, typer.Option(help="A served model.")] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Questions under way at a time.")
    ] = 16,
    timeout: Annotated[float | None, typer.Option(help="Seconds a question.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Accuracies of a multiple-choice file, under every normaliser in one pass.

    Ends with 1 where a question failed or the server could not be asked, with 3 where
    an accuracy is under its limit.
    """
    setup = Setup(scoring=scoring.value, unconditional=unconditional)
    limits = [_read_limit(words, setup) for words in fail_under or ()]
    settings = read_settings(
        base_url=base_url, timeout=timeout, max_connections=concurrency
    )
    odd: list[str] = []
    everything = read_questions(file, warn=odd.append)
    _tell_some([f"note: {told}" for told in odd], "notes")
    questions = everything[:limit]
    path = output or Path(f"{_name(file)}.results.jsonl")
    _check_apart("output", path, {"question file": file})
    if report is not None:
        _check_apart("report", report, {"question file": file, "results file": path})
        _check_writable(report)
    again = f"the same command{' without --restart' if restart else ''} goes on"
    with Results(path, setup, everything, restart=restart) as results:
        stopped = _ask(settings, questions, setup, results, model=model, again=again)
    summary = summarise(file.resolve().name, setup, questions, results, stopped=stopped)
    _tell_failures(summary, context, again=again)
    if as_json:
        typer.echo(json.dumps(summary.as_json()))
    elif summary.answered:
        typer.echo(f"{summary.told}; details in {path}")
        _show_measures(summary.measures)
    if report is not None:
        _write_report(report, page(summary), quiet=as_json)
    below = [
        (name, least)
        for name, least in limits
        if name in summary.measures and summary.measures[name].accuracy < least
    ]
    for name, least in below:
        found = summary.measures[name]
        typer.echo(
            f"radixflow: {name} is {found.accuracy:.6g} ({found.right} of "
            f"{found.count}), under {least:g}",
            err=True,
        )
    raise typer.Exit(1 if summary.stopped or summary.failed else BELOW if below else 0)


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
        with _bar() as bar:
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


def _tell_failures(summary: Summary, context: typer.Context, *, again: str) -> None:
    lines = []
    for reason, names in summary.failures.items():
        who = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
        why = _in_flags(reason, context)
        lines.append(
            f"{who}: {why}"
            if len(names) == 1
            else f"{len(names)} questions ({who}): {why}"
        )
    _tell_some(lines, "reasons of failures")
    told = summary.stopped
    if told is None:
        return
    if summary.answered == summary.questions:
        told += "; the results are earlier ones, maybe not of the model it has now"
    elif summary.answered:
        told += (
            f"; {summary.answered} of {summary.questions} are in {summary.results}; "
            f"{again}"
        )
    typer.echo(f"radixflow: {_in_flags(told, context)}", err=True)


def _tell_some(lines: Sequence[str], what: str) -> None:
    for line in lines[:SHOWN]:
        typer.echo(f"radixflow: {line}", err=True)
    if len(lines) > SHOWN:
        typer.echo(f"radixflow: {len(lines) - SHOWN} more {what}", err=True)


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


@app.command(
    "lm-eval",
    help="lm-evaluation-harness with the model `radixflow` (try --help).",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def lm_eval(context: typer.Context) -> None:
    """Hand the rest of the command line to lm-evaluation-harness."""
    with _extra("lm-eval", "eval"):
        harness = importlib.import_module("radixflow_sdk.evals.harness")
    harness.main(list(context.args))


@app.command(
    "serve",
    help="Start a server; all that follows is the server's (try --help).",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def serve(context: typer.Context) -> None:
    """Hand the rest of the command line to the server extension."""
    with _extra("serving", "server"):
        launcher = importlib.import_module("server_ext.serve")
    raise typer.Exit(launcher.main(list(context.args)))


@app.command(
    "replay",
    help="Replay policies on the real scheduler, without a model (try --help).",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def replay(context: typer.Context) -> None:
    """Hand the rest of the command line to the replay lab."""
    with _extra("the replay", "server,replay"):
        lab = importlib.import_module("server_ext.replay")
        status = lab.main(list(context.args))
    raise typer.Exit(status)


def main() -> None:
    """Run the command line (the console script ``radixflow``)."""
    app()


def _one_server(url: str | None, base_url: str | None) -> str | None:
    if url is not None and base_url is not None:
        raise InvalidInputError(
            f"base_url is {url!r} and again {base_url!r}; give one of URL and "
            "--base-url.",
            field="base_url",
            value=base_url,
        )
    return url if base_url is None else base_url


def _read(path: Path) -> str:
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


def _show(result: ScoreResult) -> None:
    table = Table("#", "candidate", "probability", "score", "tokens", "cached")
    for place, candidate in enumerate(result.candidates, start=1):
        table.add_row(
            f"{place}{'=' if candidate.tied else ''}",
            Text(candidate.text or ""),  # Text: brackets in an option are no markup
            f"{candidate.probability:.4f}",
            f"{candidate.score:.4f}",
            str(len(candidate.tokens)),
            f"{candidate.cached_tokens}/{candidate.usage.prompt_tokens}",
        )
    Console().print(table)


def _read_limit(words: str, setup: Setup) -> tuple[Normalize, float]:
    """``char=0.6`` as a normaliser and the least accuracy."""
    given, _, number = words.partition("=")
    name = next((name for name in setup.normalisers if name == given), None)
    try:
        least = float(number)
    except ValueError:
        least = -1.0
    if name is None or not 0 <= least <= 1:
        raise InvalidInputError(
            f"fail_under is {words!r}; write NORMALISER=ACCURACY, such as char=0.6, "
            f"the accuracy from 0 to 1; this run has {', '.join(setup.normalisers)}.",
            field="fail_under",
            value=words,
        )
    return name, least


def _name(file: Path) -> str:
    """What the results of a question file, or of a folder of them, are named after."""
    return file.resolve().name if file.is_dir() else file.stem


def _check_apart(option: str, path: Path, others: Mapping[str, Path]) -> None:
    for what, other in others.items():
        if path.resolve() == other.resolve():
            raise InvalidInputError(
                f"{option} is {str(path)!r}: that is the {what}; name another file.",
                field=option,
                value=str(path),
            )


def _check_writable(report: Path) -> None:
    """Before hours of questions and not after; only a page may be written over."""
    new = not report.exists()
    try:
        with report.open("a+b") as page_before:
            page_before.seek(0)
            begins = page_before.read(len(PAGE_BEGINS)).decode("latin-1")
    except OSError as error:
        raise InvalidInputError(
            f"report is {str(report)!r}: {error.strerror}; name another file.",
            field="report",
            value=str(report),
        ) from None
    if new:
        report.unlink()
    elif begins and begins != PAGE_BEGINS:
        raise InvalidInputError(
            f"report is {str(report)!r}, which is there and no page of a report; name "
            "another file.",
            field="report",
            value=str(report),
        )


def _write_report(path: Path, text: str, *, quiet: bool) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        typer.echo(f"radixflow: report {str(path)!r}: {error.strerror}", err=True)
        raise typer.Exit(2) from None
    if not quiet:
        typer.echo(f"report in {path}")


def _bar() -> Progress:
    return Progress(
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def _show_figures(load: Load, seen: Figures) -> None:
    reuse = "-" if seen.reuse is None else f"{seen.reuse:.1%} of prompt tokens"
    rounds = "not counted there"
    if seen.rounds is not None:
        each = (
            "" if seen.rows_a_round is None else f", {seen.rows_a_round:.1f} rows each"
        )
        rounds = f"{seen.rounds:,}{each}"
    if seen.others:
        rounds += f" (the server was busy: {seen.others} requests of others)"
    table = Table(show_header=False)
    for name, value in (
        (
            "load",
            f"{load.groups} questions of {load.options} options on "
            f"{min(load.documents, load.groups)} documents of {load.words} words, "
            f"{load.concurrency} at a time",
        ),
        ("with the server", f"{seen.at_a_time:.1f} at a time on average"),
        ("answered", f"{seen.groups} in {seen.seconds:.2f} s, by {seen.route or '-'}"),
        ("pace", f"{seen.groups_a_second:.1f} questions a second"),
        ("latency", f"p50 {_seconds(seen.p50)}, p95 {_seconds(seen.p95)}"),
        ("reuse", f"{reuse} ({seen.computed_tokens:,} computed)"),
        ("rounds", rounds),
    ):
        table.add_row(name, value)
    Console().print(table)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} s"


def _show_measures(measures: Mapping[Normalize, Measures]) -> None:
    table = Table("normaliser", "accuracy", "95%", "chance", "tied", "Brier", "ECE")
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
