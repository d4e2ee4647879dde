"""Argument parsers: hints for misspelled options, and help whose prose is wrapped while examples stay calls."""

from __future__ import annotations

import argparse
import difflib
import itertools
import math
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

_INDENT = " " * 6
NEAR_MAX, NEAR_SHARE = 3, 0.6  # words that may be meant: how many, and how alike they have to be


_UNSET = object()  # the value of an option that is not on the command line


class Parser(argparse.ArgumentParser):
    """Says which option a misspelled one may mean, and rejects empty option values, which come from unset shell variables.

    Positional arguments may be empty.
    """

    # Reads values by attribute from the file that --config names (config_file.py). Raises ValueError.
    read_file: Callable[[Parser, str], Mapping[str, Any]] | None = None

    def parse_known_args(self, args=None, namespace=None):
        """As of argparse, but no option is left over: an unknown one is the error of the command that it was given to."""
        given = argparse.Namespace() if namespace is None else namespace
        if self.read_file is not None:
            for action in self._settable():
                # Appending begins with an empty list in place of None.
                setattr(given, action.dest, None if is_repeatable(action) else _UNSET)
        found, rest = super().parse_known_args(args, given)
        unknown = next((word for word in rest if word.startswith("-") and word != "--"), None)
        if unknown is not None:
            self.error(f"unrecognized option {printable(unknown.partition('=')[0])}{self._hint(unknown)}")
        if self.read_file is not None:
            self._complete(found, self.read_file)
        return found, rest

    def _settable(self) -> list[argparse.Action]:
        """The options that have values."""
        return [
            one
            for one in self._actions
            if one.option_strings and one.dest != "help" and one.default != argparse.SUPPRESS
        ]

    def _complete(self, found: argparse.Namespace, read_file) -> None:
        """Set what the command line does not give: from the file of --config, else the default."""
        values: Mapping[str, Any] = {}
        if found.config is not _UNSET:
            try:
                values = read_file(self, found.config)
            except ValueError as error:
                self.exit(2, f"{self.prog}: {error}\n")
        for action in self._settable():
            if getattr(found, action.dest) in (None, _UNSET):
                default = action.default
                # As argparse has it, text is converted as if it were given.
                default = self._get_value(action, default) if isinstance(default, str) else default
                setattr(found, action.dest, values.get(action.dest, default))

    def _hint(self, word: str) -> str:
        """The options that a word may mean, as the end of a message; compared without their dashes, which all have."""
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        names = [name[2:] for action in shown for name in action.option_strings if name.startswith("--")]
        near = nearest(word.partition("=")[0].lstrip("-"), names)
        return f"; did you mean {' or '.join(f'--{name}' for name in near)}?" if near else ""

    def _get_values(self, action, arg_strings):
        if action.option_strings and "" in arg_strings:
            # Omitting an option without a default may weaken the command: --tokens.
            has_default = not action.required and action.default is not None
            advice = "omit it for its default" if has_default else "is a variable unset?"
            raise argparse.ArgumentError(action, f"empty value; {advice}")
        return super()._get_values(action, arg_strings)


def is_repeatable(action: argparse.Action) -> bool:
    return isinstance(action, argparse._AppendAction)


def nearest(word: str, names: list[str]) -> list[str]:
    """Which of these names a word may mean."""
    return difflib.get_close_matches(word, names, NEAR_MAX, NEAR_SHARE)


def printable(text: str) -> str:
    """At most 80 characters, without those that change a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text[:80])


class Number:
    """An argparse type: a number of this kind within bounds. `kinds` are the types that a file may have for it."""

    def __init__(self, kind: type[int] | type[float], minimum: float, maximum: float, unit: str = ""):
        self._kind, self._minimum, self._maximum, self._unit = kind, minimum, maximum, unit
        self.kinds = (int,) if kind is int else (int, float)

    def __call__(self, text: str) -> float:
        try:
            value = self._kind(text)
        except ValueError:
            value = math.nan
        if not self._minimum <= value <= self._maximum:
            form = "" if self._kind is int else "g"
            bounds = f"{self._minimum:{form}} to {self._maximum:{form}}"
            raise argparse.ArgumentTypeError(f"{text!r}: expected {bounds}{self._unit}")
        return value


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps the prose of descriptions and epilogs to the terminal; indented lines, such as examples, stay lines.

    Of an example that is too long, what it is for goes on a line of its own.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = []
        for is_prose, group in itertools.groupby(
            text.splitlines(), lambda line: bool(line) and not line[0].isspace()
        ):
            if is_prose:
                lines += textwrap.wrap(" ".join(group), width, break_on_hyphens=False)
            else:
                lines += itertools.chain.from_iterable(_example(line, width) for line in group)
        return "\n".join(indent + line for line in lines)


def _example(line: str, width: int) -> list[str]:
    """A call, and after two spaces what it does, in lines that a shell takes too."""
    if len(line) <= width:
        return [line]
    found = re.fullmatch(r"(\s*\S.*?)\s{2,}(\S.*)", line)
    call, *does = [line] if found is None else [found[1], f"{_INDENT}{found[2]}"]
    options = {"subsequent_indent": _INDENT, "break_long_words": False, "break_on_hyphens": False}
    *first, last = textwrap.wrap(call, width - len(" \\"), **options)
    return [
        *(f"{one} \\" for one in first),
        last,
        *(one for text in does for one in textwrap.wrap(text, width, **options)),
    ]
