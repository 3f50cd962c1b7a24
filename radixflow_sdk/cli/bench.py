"""``radixflow bench``: a small benchmark of a running server."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import anyio
import typer
from rich.console import Console
from rich.table import Table

from radixflow_sdk._bench import Figures, Load, measure
from radixflow_sdk._config import read_settings
from radixflow_sdk.cli._shared import AlsoUrl, Url, in_flags, one_server, progress_bar


def bench(
    context: typer.Context,
    url: Url = None,
    base_url: AlsoUrl = None,
    groups: Annotated[int, typer.Option(help="Number of questions.")] = 64,
    options: Annotated[int, typer.Option(help="Candidates a question.")] = 4,
    documents: Annotated[int, typer.Option(help="Distinct documents.")] = 16,
    words: Annotated[int, typer.Option(help="Words a document, at random.")] = 300,
    concurrency: Annotated[
        int, typer.Option(help="Maximum concurrent questions.")
    ] = 16,
    model: Annotated[str | None, typer.Option(help="A served model.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds a question.")] = 300.0,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Benchmark a running server: throughput, latency, cache reuse, rounds.

    The figures depend on this machine, this client and the server's other load. Exit
    status 1: a question failed.
    """
    load = Load(
        groups=groups,
        options=options,
        documents=documents,
        words=words,
        concurrency=concurrency,
    )
    settings = read_settings(
        base_url=one_server(url, base_url),
        timeout=timeout,
        max_connections=concurrency,
    )
    with progress_bar() as bar:
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
        why = in_flags(figures.error, context)
        sentence = f"radixflow: {figures.failed} of {groups} failed; first: {why}"
        typer.echo(sentence, err=True)
    if as_json:
        both = {"load": dataclasses.asdict(load), "seen": dataclasses.asdict(figures)}
        typer.echo(json.dumps(both))
    elif figures.groups:
        _show_figures(load, figures)
    raise typer.Exit(1 if figures.failed else 0)


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
