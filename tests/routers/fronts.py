"""Routers as they are, each a process of its own in front of some servers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
ROUTER = shutil.which("vllm-router", path=str(ROOT / ".venv-routers" / "bin"))
"""`make routers` puts it there."""


@contextmanager
def nginx(folder: Path, urls: Sequence[str]) -> Iterator[str]:
    """nginx with the configuration of the examples, in front of two servers."""
    assert NGINX is not None
    text = (ROOT / "examples" / "nginx.conf").read_text(encoding="utf-8")
    port = free_port()
    names = ("127.0.0.1:8001", "127.0.0.1:8002", "127.0.0.1:8000")
    places = (*[url.removeprefix("http://") for url in urls], f"127.0.0.1:{port}")
    for name, place in zip(names, places, strict=True):
        assert text.count(name) == 1
        text = text.replace(name, place)
    config = folder / "nginx.conf"
    config.write_text(text, encoding="utf-8")
    # Started by root, its workers are nobody, whom pytest's folders are closed to.
    how = "daemon off;" + (" user root;" if os.geteuid() == 0 else "")
    command = [NGINX, "-p", str(folder), "-c", str(config), "-g", how]
    with _running(command, folder, f"http://127.0.0.1:{port}") as url:
        yield url


@contextmanager
def vllm_router(folder: Path, urls: Sequence[str], *flags: str) -> Iterator[str]:
    """vllm-router with ``consistent_hash``."""
    assert ROUTER is not None
    port = free_port()
    command = [ROUTER, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--policy", "consistent_hash", "--worker-urls", *urls]
    command += ["--prometheus-port", str(free_port()), "--log-level", "warning"]
    command += ["--worker-startup-check-interval", "1", *flags]
    with _running(command, folder, f"http://127.0.0.1:{port}") as url:
        yield url


@contextmanager
def _running(command: list[str], folder: Path, url: str) -> Iterator[str]:
    log = folder / "router.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        deadline = time.monotonic() + 30
        while not _answers(url):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/health", timeout=1).status_code == 200
    return False


def free_port() -> int:
    """A port that nobody has just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
