"""Write a man page for goodput and for each of its commands and their actions, from their parsers.

PYTHONPATH=src python deploy/packages/man_pages.py FOLDER     # goodput.1, goodput-serve.1, goodput-token-list.1, ...
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

COLUMNS = "78"


def escaped(text: str) -> str:
    """As roff text: no escapes, hyphens as in options, and no line that is a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = "".join(c if c.isascii() else f"\\[u{ord(c):04X}]" for c in text)
    return re.sub(r"(?m)^([.'])", r"\\&\1", text)


def literal(text: str) -> list[str]:
    """Lines that stay as they are."""
    return [".nf", escaped(text.strip("\n")), ".fi"]


def prose(text: str) -> Iterator[str]:
    """Paragraphs are filled, indented lines stay."""
    for part in re.split(r"\n\n+", text.strip("\n")):
        yield ".PP"
        if any(line.startswith(" ") for line in part.splitlines()):
            yield from literal(part)
        else:
            yield escaped(part)


def option_lines(action: argparse.Action, formatter: argparse.HelpFormatter) -> list[str]:
    name = formatter._format_action_invocation(action)
    return [".TP", f"\\fB{escaped(name)}\\fR", escaped(formatter._expand_help(action) if action.help else "")]


def page(parser: argparse.ArgumentParser, does: str, version: str) -> str:
    name = parser.prog.replace(" ", "-")
    formatter = parser._get_formatter()
    usage = parser.format_usage().removeprefix("usage: ")
    lines = [f'.TH "{name.upper()}" "1" "" "goodput {version}" "goodput"']
    lines += [".SH NAME", f"{escaped(name)} \\- {escaped(does)}", ".SH SYNOPSIS", *literal(usage)]
    lines += [".SH DESCRIPTION", *list(prose(parser.description or does))[1:]]
    for group in parser._action_groups:
        shown = [one for one in group._group_actions if one.help != argparse.SUPPRESS]
        if shown:
            lines.append(f'.SH "{escaped((group.title or "").upper())}"')
            lines += [line for one in shown for line in option_lines(one, formatter)]
    if parser.epilog:
        lines += [".SH NOTES", *list(prose(parser.epilog))[1:]]
    return "\n".join(line for line in lines if line) + "\n"


def pages(
    parser: argparse.ArgumentParser, does: str, lines: dict[str, str], version: str
) -> Iterator[tuple[str, str]]:
    """(file name, text) of a parser and of all below it; `lines` has what each command does."""
    yield f"{parser.prog.replace(' ', '-')}.1", page(parser, does, version)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            own = {one.dest: one.help or "" for one in action._choices_actions} | lines
            for name, below in action.choices.items():
                yield from pages(below, own.get(name, name), {}, version)


def write_pages(folder: Path) -> list[Path]:
    """Write all pages into the folder, which is made; returns their paths. They are the same for every user."""
    os.environ.update(COLUMNS=COLUMNS, HOME="~")
    for name in [name for name in os.environ if name.startswith(("GOODPUT_", "XDG_"))]:
        del os.environ[name]
    from goodput import __version__, cli

    does = {name: text for group in cli.COMMANDS.values() for name, text in group.items()}
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in pages(cli.parser(), "where the GPU time of training runs goes", does, __version__):
        written.append(folder / name)
        written[-1].write_text(text, encoding="utf-8")
    return written


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
