"""``radixflow serve MODEL --self-test``: start, compare scores, stop.

Runs the server and ``radixflow doctor --exact`` as two processes of their own, so that
the server is the one that users get, and its exit cannot be missed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence

__all__ = ["free_port", "run"]

_COMMAND = "from radixflow_sdk.cli import main; main()"
_SECONDS_TO_STOP = 60.0
_PAUSE = 0.5


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def run(arguments: Sequence[str], *, port: int, key: str | None) -> int:
    """Serve, examine and stop.

    Args:
        arguments: what follows ``radixflow serve``, the port included.
        port: where the server will answer on 127.0.0.1.
        key: its API key, if it has one.

    Returns:
        Exit status: 0 if nothing is wrong, 1 if something is, or the server's own if
        it ends before it answers.
    """
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [sys.executable, "-c", _COMMAND, "serve", *arguments], start_new_session=True
    )
    try:
        if not _comes_up(server, url):
            return server.returncode or 1
        environment = os.environ | ({} if key is None else {"RADIXFLOW_API_KEY": key})
        doctor = [sys.executable, "-c", _COMMAND, "doctor", url, "--exact"]
        return subprocess.run(doctor, env=environment, check=False).returncode
    finally:
        _stop(server)


def _comes_up(server: subprocess.Popen[bytes], url: str) -> bool:
    while server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return True
        except OSError:  # nobody listens yet, or urllib's error for another status
            time.sleep(_PAUSE)
    return False


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Send SIGINT, then SIGKILL to what remains of the process group."""
    for signal_number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(server.pid, signal_number)
            server.wait(_SECONDS_TO_STOP)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
