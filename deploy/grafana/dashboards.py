"""The dashboards of Grafana. ``make dashboards`` writes the JSON files that Grafana imports.

Each dashboard is a module of ``boards``. Its panels follow the order of an operator's questions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from .boards import cost, edge, fleet, pool, provisioner
from .boards.panels import dashboard

HERE = Path(__file__).parent
BOARDS = (fleet.BOARD, provisioner.BOARD, pool.BOARD, edge.BOARD, cost.BOARD)


def texts() -> dict[Path, str]:
    """Return the content of each JSON file, by path."""
    encode: Callable[[object], str] = JSONEncoder(sort_keys=True, indent=2).encode
    return {HERE / f"{board.name}.json": encode(dashboard(board).build()) + "\n" for board in BOARDS}


if __name__ == "__main__":
    for file, text in texts().items():
        file.write_text(text)
        print(file)
