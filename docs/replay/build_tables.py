"""Fill the tables of ``docs/replay.md`` from the CSV files of ``docs/replay/``.

python docs/replay/build_tables.py          # rewrites what lies between the markers
python docs/replay/build_tables.py --check  # fails where something would change
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from server_ext.replay import tables
from server_ext.replay.grid import Folder

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "replay.md"


def main() -> int:
    """Write the page, or say whether it is up to date."""
    grid = [one for one in Folder(HERE) if not one.cell.own_rate]
    swept = [one for one in Folder(HERE) if one.cell.own_rate]
    few = [one for one in grid if one.cell.stream in ("few-shot", "sessions")]
    found = {
        "headline": tables.headline(grid),
        "streams": tables.streams(few),
        "bubbles": tables.bubbles(grid),
        "sweep": tables.sweep(swept),
        "backlog": tables.backlog(Folder(HERE / "backlog")),
        "fence": tables.fence(list(Folder(HERE / "fence"))),
    }
    was = text = PAGE.read_text(encoding="utf-8")
    for name, table in found.items():
        mark = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
        filled = table.as_markdown()
        text = re.sub(mark, lambda m, t=filled: m[1] + t + m[2], text, flags=re.DOTALL)
    if "--check" in sys.argv[1:]:
        return int(text != was)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
