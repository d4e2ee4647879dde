"""The documentation's pictures: every board over one simulated cluster's last hours, into docs/board-*.png.

Takes about three minutes on two cores; exit status 1 if a query or a picture failed.

    python -m dashboards.render.pictures docs
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from dashboards.render.__main__ import draw
from dashboards.render.document import document_of
from dashboards.render.history import history
from dashboards.render.queries import Range

GENERATED = Path(__file__).resolve().parents[1] / "generated"
END_SECONDS = 1_767_609_480  # 5 January 2026, 10:38 UTC: no label of a time axis is cut at its end.
LENGTH_SECONDS = 9000.0
# Minutes of the picture, and the values of variables.
VIEWS: dict[str, tuple[int, dict[str, list[str]]]] = {
    "fleet": (140, {}),
    "run": (75, {"run": ["llama-70b"]}),
    "communication": (75, {"run": ["llama-70b"]}),
    "node": (60, {"run": ["llama-70b"], "instance": ["gpu-02:9470"]}),
    "gpu": (60, {"instance": ["gpu-02:9470"]}),
    "host": (60, {"run": ["vit-22b"]}),
    "rank": (45, {"run": ["llama-70b"], "rank": ["13"]}),
    "stack": (60, {}),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m dashboards.render.pictures", description=__doc__.split("\n")[0]
    )
    parser.add_argument("out", type=Path, metavar="DIRECTORY")
    parser.add_argument("--board", action="append", choices=VIEWS, help="all when left out")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    status = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        history(Path(folder), seconds=LENGTH_SECONDS, end_seconds=END_SECONDS) as url,
    ):
        for board in options.board or VIEWS:
            minutes, chosen = VIEWS[board]
            range_ = Range((END_SECONDS - 60 * minutes) * 1000, END_SECONDS * 1000)
            model = json.loads((GENERATED / f"goodput-{board}.json").read_text())
            document = document_of(model, url, range_, chosen)
            status |= draw(board, document, options.out / f"board-{board}.png", [])
    return status


if __name__ == "__main__":
    sys.exit(main())
