"""``radixflow score``: rank candidates for one document."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from radixflow_sdk._results import ScoreResult
from radixflow_sdk.cli._shared import BaseUrl, NormalizeName, ScoringName, read_document
from radixflow_sdk.sync import RadixFlow


def score(
    document: Annotated[
        Path,
        typer.Option(
            help="Text file in UTF-8, '-' for standard input, without its last line "
            "break."
        ),
    ],
    option: Annotated[list[str], typer.Option(help="A candidate; repeatable.")],
    question: Annotated[
        str | None, typer.Option(help="Text after the document.")
    ] = None,
    scoring: Annotated[ScoringName, typer.Option()] = ScoringName.likelihood,
    normalize: Annotated[NormalizeName, typer.Option()] = NormalizeName.sum,
    unconditional: Annotated[
        str | None,
        typer.Option(help="For pmi: the context of an option without the document."),
    ] = None,
    base_url: BaseUrl = None,
    model: Annotated[str | None, typer.Option(help="A served model.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds in total.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> None:
    """Rank candidates for one document."""
    text = read_document(document)
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
