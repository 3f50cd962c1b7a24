from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixflow_sdk import InvalidResponseError, StreamBrokenError
from radixflow_sdk._transport._http import LineReader

TEXT = b'{"a": 1}\n{"b": 2}\n\n{"c": "\xc3\xa9"}\n'


@given(st.sets(st.integers(0, len(TEXT))))
def test_lines_do_not_depend_on_the_chunks(cuts: set[int]) -> None:
    edges = [0, *sorted(cuts), len(TEXT)]
    reader = LineReader()
    lines = [
        line for low, high in pairwise(edges) for line in reader.feed(TEXT[low:high])
    ]
    reader.close()
    assert lines == TEXT.split(b"\n")[:-1]


@pytest.mark.parametrize("cut", range(1, len(TEXT)))
def test_a_cut_line_is_said(cut: int) -> None:
    reader = LineReader()
    reader.feed(TEXT[:cut])
    if TEXT[cut - 1 : cut] == b"\n":
        reader.close()
    else:
        with pytest.raises(StreamBrokenError):
            reader.close()


@pytest.mark.parametrize("chunks", [[b"x" * 11], [b"x" * 6] * 2, [b"x" * 11 + b"\n"]])
def test_a_line_is_bounded(chunks: list[bytes]) -> None:
    reader = LineReader(max_line_bytes=10)

    def feed() -> None:
        for chunk in chunks:
            reader.feed(chunk)

    with pytest.raises(InvalidResponseError, match="bound of 10"):
        feed()


def test_a_line_of_exactly_the_bound_passes() -> None:
    assert LineReader(max_line_bytes=10).feed(b"x" * 10 + b"\n") == [b"x" * 10]
