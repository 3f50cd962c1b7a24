"""Rows of a file: JSON lines, a JSON array or object, CSV, TSV, Parquet; plain or gzip.

What a file is shows in its first bytes, and for CSV and TSV in its name.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "RESULTS_KEY",
    "STDIN",
    "SUFFIXES",
    "Row",
    "UnreadableError",
    "is_results",
    "rows",
]

RESULTS_KEY = "radixflow_eval"
"""The first key of a results file, which distinguishes it from questions."""
STDIN = Path("-")
MAX_LINE_BYTES = 64 * 2**20
"""A longer line could not be sent anyway: the server takes bodies of 64 MiB."""
_KINDS = (".jsonl", ".json", ".txt", ".csv", ".tsv", ".parquet")
SUFFIXES = (*_KINDS, *(f"{kind}.gz" for kind in _KINDS))
_OTHERS = {
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"BZh": "compressed with bzip2; unpack it first",
    b"\xfd7zXZ": "compressed with xz; unpack it first",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it first",
    b"\xff\xfe": "UTF-16; convert it: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16; convert it: iconv -f UTF-16 -t UTF-8",
}
_ADVICE = "write one JSON object a line, a JSON array, or CSV with a header"


class UnreadableError(Exception):
    """A file of a kind that holds no rows; the message says which."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a file.

    Attributes:
        number: Its line, or its position where a file is one JSON value; from 1.
        value: What it holds, or why it cannot be read.
    """

    number: int
    value: Mapping[str, Any] | ValueError


def is_results(file: Path) -> bool:
    """Whether a file holds results of an evaluation and no questions."""
    try:
        with file.open("rb") as lines:
            first = lines.readline(len(RESULTS_KEY) + 10)
    except OSError:
        return False  # refused where its questions are read
    return first.startswith(f'{{"{RESULTS_KEY}"'.encode())


def rows(file: Path) -> Generator[Row, None, None]:
    """The rows of a file, or of standard input (``-``).

    Raises:
        OSError: It cannot be read.
        EOFError: It is compressed, and cut.
        UnreadableError: It is another kind of file.
    """
    with _open(file) as raw:
        begins = raw.peek(8)[:8]
        for magic, what in _OTHERS.items():
            if begins.startswith(magic):
                raise UnreadableError(f"is {what}")
        if begins.startswith(b"PAR1"):
            yield from _parquet(raw)
            return
        if begins.startswith(b"\xef\xbb\xbf"):
            raw.read(3)
        name = file.name.removesuffix(".gz")
        if name.endswith((".csv", ".tsv")):
            with io.TextIOWrapper(raw, encoding="utf-8", newline="") as text:
                yield from _table(text, "\t" if name.endswith(".tsv") else ",", file)
            return
        if raw.peek(1)[:1] == b"[":
            yield from _array(raw)
            return
        yield from _labeled(_lines(raw), file)


def _open(file: Path) -> io.BufferedReader[Any]:
    raw: io.BufferedReader[Any]
    if file == STDIN:
        raw = io.BufferedReader(io.BytesIO(sys.stdin.buffer.read()))
    else:
        raw = file.open("rb")
    if raw.peek(2)[:2] != b"\x1f\x8b":
        return raw
    with raw:
        return io.BufferedReader(io.BytesIO(gzip.decompress(raw.read())))


def _lines(raw: io.BufferedReader) -> Iterator[Row]:
    """JSON lines; where the first one is no JSON, the file may be one object."""
    number = 0
    begun = False
    while line := raw.readline(MAX_LINE_BYTES + 1):
        number += 1
        if not line.strip():
            continue
        if len(line) > MAX_LINE_BYTES:
            error = ValueError(f"is over {MAX_LINE_BYTES} bytes; the rest was not read")
            yield Row(number, error)
            return
        value = _parse(line)
        if not begun and isinstance(value, ValueError):
            yield from _whole(line + raw.read(), number, value)
            return
        begun = True
        yield Row(number, value)


def _whole(text: bytes, number: int, otherwise: ValueError) -> Iterator[Row]:
    """A file that is one JSON object; its rows are its values where all are objects."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict) and RESULTS_KEY not in value:
        yield from _rows_of(value)
    else:
        yield Row(number, otherwise)


def _array(raw: io.BufferedReader) -> Iterator[Row]:
    """A JSON array, or lines of arrays, which are refused one by one."""
    text = raw.read()
    try:
        value = json.loads(text)
    except RecursionError as error:
        yield Row(1, ValueError(f"is not JSON: {error}"))
    except ValueError:
        yield Row(1, _parse(text.partition(b"\n")[0]))
    else:
        yield from _rows_of(value)


def _rows_of(value: Any) -> Iterator[Row]:
    if isinstance(value, dict):
        if not value or not all(isinstance(item, dict) for item in value.values()):
            yield Row(1, value)
            return
        # As PubMedQA ships: one object, its rows under their ids.
        value = [{"id": name, **item} for name, item in value.items()]
    for number, item in enumerate(value, start=1):
        if isinstance(item, dict):
            yield Row(number, item)
        else:
            yield Row(number, ValueError(f"is not a JSON object; {_ADVICE}"))


def _parse(line: bytes) -> Mapping[str, Any] | ValueError:
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        return ValueError(f"is not UTF-8 at byte {error.start}")
    except json.JSONDecodeError as error:
        at = f"column {error.pos + 1}"
        return ValueError(f"is not JSON at {at} ({error.msg}); {_ADVICE}")
    except (ValueError, RecursionError) as error:
        return ValueError(f"is not JSON: {error}")
    if not isinstance(value, dict):
        return ValueError(f"is not a JSON object; {_ADVICE}")
    if RESULTS_KEY in value:
        return ValueError("these are an evaluation's results; name the questions' file")
    return value


def _labeled(found: Iterator[Row], file: Path) -> Iterator[Row]:
    """Rows with the labels of PIQA's ``NAME-labels.lst``, which lies beside them."""
    beside = file.with_name(f"{file.name.partition('.')[0]}-labels.lst")
    if file == STDIN or not beside.is_file():
        yield from found
        return
    labels = beside.read_text(encoding="utf-8").split()
    for row in found:
        value = row.value
        if isinstance(value, Mapping) and row.number <= len(labels):
            value = {"label": labels[row.number - 1], **value}
        yield Row(row.number, value)


def _table(text: io.TextIOWrapper, delimiter: str, file: Path) -> Iterator[Row]:
    csv.field_size_limit(MAX_LINE_BYTES)
    if delimiter == "\t":
        cells = csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
    else:
        cells = csv.reader(text)
    header: list[str] | None = None
    try:
        for number, row in enumerate(cells, start=1):
            if not any(row):
                continue
            if header is None and len(row) == _MCTEST_COLUMNS:
                yield from _mctest(number, row, cells, file)
                return
            if header is None and len(row) == len(_MMLU) and row[-1] in tuple("ABCD"):
                header = list(_MMLU)
            elif header is None:
                header = row
                continue
            if len(row) != len(header):
                why = f"has {len(row)} cells under {len(header)} columns"
                yield Row(number, ValueError(why))
            else:
                values = map(_cell, row)
                yield Row(number, dict(zip(header, values, strict=True)))
    except UnicodeDecodeError as error:
        yield Row(1, ValueError(f"is not UTF-8 at byte {error.start}"))
    except csv.Error as error:
        yield Row(cells.line_num, ValueError(f"is no CSV: {error}"))


_MMLU = ("question", "A", "B", "C", "D", "answer")
_MCTEST_COLUMNS = 23


def _cell(text: str) -> Any:
    """A list or an object inside a cell, as exports write them; else the text."""
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _mctest(
    number: int, first: list[str], more: Iterator[list[str]], file: Path
) -> Iterator[Row]:
    """MCTest: 23 columns without a header, the answers in ``NAME.ans`` beside it."""
    answers = file.with_suffix(".ans").read_text(encoding="utf-8").splitlines()
    for at, row in enumerate([first, *more]):
        letters = answers[at].split("\t")
        asked = [
            {
                "question": row[3 + 5 * place],
                "options": row[4 + 5 * place : 8 + 5 * place],
                "answer": letter,
            }
            for place, letter in enumerate(letters)
        ]
        yield Row(number + at, {"id": row[0], "story": row[2], "mctest": asked})


def _parquet(raw: io.BufferedReader) -> Iterator[Row]:
    try:
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise UnreadableError("is Parquet; install pyarrow to read it") from None
    table = parquet.read_table(io.BytesIO(raw.read()))
    for number, value in enumerate(table.to_pylist(), start=1):
        yield Row(number, value)
