"""The built-in page: HTML, CSS and JavaScript that the aggregator serves and that `--html` writes to one file.

page.html and page.css are the page, login.html and login.css the sign-in form. Its scripts, by subject: main.js
(polling and user input), address.js, keyboard.js, theme.js, data/ (API or file), dom/ (nodes, tables), text/
(numbers, times, names of states), runs/ (the list), run/ (one run, a file per section), installation/ (the aggregator
and the agents themselves) and charts/. They are ES
modules without a build step. Columns of tables are lists of entries: runs/columns.js for the list of runs, otherwise
COLUMNS in the section's file.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent


def assets() -> dict[str, str]:
    """Media types of the files that page.html loads, by path below FOLDER."""
    scripts = {
        path.relative_to(FOLDER).as_posix(): "text/javascript" for path in FOLDER.glob("scripts/**/*.js")
    }
    return {"page.css": "text/css", **scripts}
