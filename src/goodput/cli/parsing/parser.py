"""Argument parsers: hints for misspelled options, and help whose prose is wrapped while examples stay calls."""

from __future__ import annotations

import argparse
import difflib
import itertools
import re
import textwrap

_INDENT = " " * 6
NEAR_MAX, NEAR_SHARE = 3, 0.6  # words that may be meant: how many, and how alike they have to be


class Parser(argparse.ArgumentParser):
    """Says which option a misspelled one may mean, and rejects empty option values, which come from unset shell variables.

    Positional arguments may be empty.
    """

    def parse_known_args(self, args=None, namespace=None):
        """As of argparse, but no option is left over: an unknown one is the error of the command that it was given to."""
        found, rest = super().parse_known_args(args, namespace)
        unknown = next((word for word in rest if word.startswith("-") and word != "--"), None)
        if unknown is not None:
            self.error(f"unrecognized option {printable(unknown.partition('=')[0])}{self._hint(unknown)}")
        return found, rest

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


def nearest(word: str, names: list[str]) -> list[str]:
    """Which of these names a word may mean."""
    return difflib.get_close_matches(word, names, NEAR_MAX, NEAR_SHARE)


def printable(text: str) -> str:
    """At most 80 characters, without those that change a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text[:80])


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
