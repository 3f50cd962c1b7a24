"""The report: one page, no network, drawn and hovered over in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("plotly", reason="the report needs the extra 'replay'")

from server_ext.replay import main
from server_ext.replay.figures import CAUSES

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--virtual-time-budget=30000",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("grid")
    common = ["--out", str(out), "--questions", "8"]
    arms = "radix-0.32,radix-0.33,radixflow,tree,radixflow+"
    grid = ["grid", *common, "--models", "Qwen3.5-9B,Qwen3-8B", "--policies", arms]
    assert main([*grid, "--streams", "cold", "--orders", "forward"]) == 0
    assert main(["sweep", *common, "--loads", "0.5,1"]) == 0
    assert main(["report", "--out", str(out)]) == 0
    return out


def test_the_page_needs_no_network(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    ours = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "http" not in ours
    assert not re.search(r"<(link|img|iframe)|src=", ours)
    assert "Simulated." in ours


def test_the_headline_leads_with_the_harder_baseline(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    head = page.partition("Mean client latency")[2].partition("</tr>")[0]
    assert head.index("radixflow vs 0.33") < head.index("vs 0.32")


def test_the_cells_have_a_row_each(folder: Path) -> None:
    lines = (folder / "cells.csv").read_text().splitlines()
    assert len(lines) == 1 + 10 + 10
    assert lines[0].startswith("cell_model,cell_arm,cell_stream")


def test_the_page_says_what_rounds_left_unused(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    ends = page.partition("<h2>Rounds</h2>")[2].partition("</table>")[0]
    for cause in CAUSES[2:]:
        assert f"<th>unused: {cause}</th>" in ends
    assert ends.count("<tr>") == 1 + 10


def test_the_report_is_an_option_too_and_can_go_elsewhere(
    folder: Path, tmp_path: Path
) -> None:
    assert main(["report", "--out", str(folder), "--page", str(tmp_path)]) == 0
    assert main(["--report", str(folder)]) == 0
    pages = [(path / "report.html").read_text() for path in (folder, tmp_path)]
    assert pages[0] == pages[1]


def test_cells_that_must_not_be_pooled_are_refused(tmp_path: Path, capsys: Any) -> None:
    grid = ["grid", "--out", str(tmp_path), "--questions", "4", "--models", "Qwen3-8B"]
    grid += ["--streams", "cold", "--orders", "forward", "--policies", "radix-0.33"]
    assert main(grid) == 0
    assert main([*grid, "--async"]) == 0
    assert main(["report", "--out", str(tmp_path)]) == 2
    assert "asynchronous False and True" in capsys.readouterr().err


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_draws_every_chart_and_hovers(folder: Path) -> None:
    assert CHROMIUM is not None
    page = (folder / "report.html").read_text()
    hover = (
        "<script>setTimeout(() => Plotly.Fx.hover('timeline', {xval: 2, yval: 0}, "
        "'xy'), 3000)</script>"
    )
    tried = folder / "hovered.html"
    tried.write_text(page.replace("</html>", hover + "</html>"))
    done = subprocess.run(
        [CHROMIUM, *FLAGS, "--dump-dom", tried.as_uri()],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    places = page.count('class="chart"')
    assert places >= 5
    assert f'data-drawn="{places}"' in done.stdout
    assert done.stdout.count('class="main-svg"') >= places
    timeline = done.stdout.partition('id="timeline"')[2]
    assert re.search(r'class="hovertext".*?round 2:', timeline, re.DOTALL)


def test_the_pages_tables_are_those_of_its_cells() -> None:
    script = Path(__file__).parents[2] / "docs" / "replay" / "build_tables.py"
    subprocess.run([sys.executable, str(script), "--check"], check=True, timeout=60)
