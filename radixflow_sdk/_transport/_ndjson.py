"""Lines of a byte stream, with a bound on their length.

A line is what a ``\\n`` ends; bytes after the last one are a cut line.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable

from radixflow_sdk.exceptions import InvalidResponseError, StreamBrokenError

# A branch of 100,000 tokens needs about 3 MB.
MAX_LINE_BYTES = 16 * 2**20


class LineReader:
    """Cuts chunks into lines; each byte is looked at once."""

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take a chunk; return the lines that it ends, without their line breaks.

        Raises:
            InvalidResponseError: A line is longer than the bound.
        """
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        longest = max(map(len, (*lines, self._rest)))
        if longest > self._max_line_bytes:
            raise InvalidResponseError(
                f"The server sent a line of {longest} bytes or more, above the bound "
                f"of {self._max_line_bytes}; ask for fewer tokens or labels."
            )
        return lines

    def close(self) -> None:
        """Say that no more bytes will come.

        Raises:
            StreamBrokenError: The last line was cut.
        """
        if self._rest:
            raise StreamBrokenError(
                f"The server's answer was cut inside a line, after {len(self._rest)} "
                "bytes of it; try again."
            )


async def read_lines(
    chunks: AsyncIterable[bytes], *, max_line_bytes: int = MAX_LINE_BYTES
) -> AsyncGenerator[bytes, None]:
    """Yield each line as soon as it is complete.

    Raises:
        InvalidResponseError: A line is longer than ``max_line_bytes``.
        StreamBrokenError: The last line was cut.
    """
    reader = LineReader(max_line_bytes)
    async for chunk in chunks:
        for line in reader.feed(chunk):
            yield line
    reader.close()
