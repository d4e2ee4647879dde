"""Write the table of docs/helm.md from values.yaml: each value with its default and the comment beside it.

Reads the file by lines, so each value stands in one line with its comment. Needs Python alone.

    python3 deploy/helm/values_table.py       # `make chart` does
"""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "helm.md"
HEAD = "| value | default | what it is |\n|---|---|---|\n"
LINE = re.compile(r"^( *)(\w+):(?: (?!#)(.+?))?(?: # (.+))?$")


def rows(text: str) -> list[tuple[str, str, str]]:
    """(path, default, comment) of each value. Raises ValueError for a line that is none."""
    found, sections = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#") or not line:
            continue
        match = LINE.match(line)
        if match is None:
            raise ValueError(f"values.yaml, line {number}: a value has to stand in one line: {line}")
        indent, name, default, comment = match.groups()
        path = [*sections[: len(indent) // 2], name]
        if default is None:
            sections = path
        elif comment is None:
            raise ValueError(f"values.yaml, line {number}: {'.'.join(path)} has no comment")
        else:
            found.append((".".join(path), default, comment))
    return found


def table(text: str) -> str:
    """The rows in Markdown."""
    return HEAD + "".join(
        f"| `{path}` | `{default}` | {comment} |\n" for path, default, comment in rows(text)
    )


def page(old: str, values: str) -> str:
    """The page with the table of `values`, which is what it ends with."""
    return old[: old.index(HEAD)] + table(values)


if __name__ == "__main__":
    PAGE.write_text(
        page(PAGE.read_text(encoding="utf-8"), (HERE / "values.yaml").read_text(encoding="utf-8"))
    )
