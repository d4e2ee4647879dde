"""Options of a command from a TOML file: `goodput serve --config FILE`.

Keys are the names of long options without their dashes. The command line wins over the file, the file over variables and
defaults; an option that may be repeated is an array, which the command line replaces as a whole.

    listen = "0.0.0.0:9471"
    stall = 30
    metrics-public = true
    allow-host = ["goodput.internal", "goodput"]
"""

from __future__ import annotations

import argparse
import re
import sys
from typing import Any

from goodput.cli.parsing.parser import Number, Parser, is_repeatable, nearest, printable

BYTES_MAX = 1 << 20
KINDS = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "an array",
    dict: "a table",
}


class ConfigError(ValueError):
    """What is wrong with the file, and where."""


def add_config_option(parser: Parser) -> None:
    """Add --config FILE to a command, whose values stand for those that the command line does not give."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help='take options from this TOML file, by their names without dashes, such as listen = "127.0.0.1:0"; the '
        "command line wins over the file, the file over variables (docs/configuration.md)",
    )
    parser.read_file = read_options


def read_options(parser: Parser, path: str) -> dict[str, Any]:
    """The values of a file by the names of their attributes. Raises ConfigError."""
    text = _read(path)
    by_key = {
        name[2:]: action
        for action in parser._actions
        if action.help != argparse.SUPPRESS and action.dest not in ("help", "config")
        for name in action.option_strings
        if name.startswith("--")
    }
    values = {}
    for key, value in _parse(text, path).items():
        where = f"{path}: {_place(text, key)}{printable(key)}"
        if key not in by_key:
            near = nearest(key.replace("_", "-"), list(by_key))
            meant = f"; did you mean {' or '.join(near)}?" if near else f"; {parser.prog} --help lists them"
            raise ConfigError(f"{where}: there is no such option{meant}")
        action = by_key[key]
        try:
            values[action.dest] = _value(parser, action, value)
        except argparse.ArgumentError as error:
            raise ConfigError(f"{where}: {error.message}") from None
    return values


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            raw = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror}") from None
    if len(raw) > BYTES_MAX:
        raise ConfigError(f"--config {path}: larger than {BYTES_MAX >> 20} MiB")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError(f"--config {path}: line {line}: not UTF-8") from None


def _parse(text: str, path: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError:
            raise ConfigError("--config needs tomli: pip install 'goodput-telemetry[node]'") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--config {path}: {error}") from None


def _place(text: str, key: str) -> str:
    """ "line N: " where one line sets the key or begins a table of this name, else ""."""
    name = re.escape(key)
    pattern = rf"[ \t]*(?:\[+[ \t]*)?[\"']?{name}[\"']?[ \t]*[=.\]]"
    lines = [number for number, line in enumerate(text.split("\n"), 1) if re.match(pattern, line)]
    return f"line {lines[0]}: " if len(lines) == 1 else ""


def _value(parser: Parser, action: argparse.Action, value: Any) -> Any:
    """The value of an option from the file's. Raises argparse.ArgumentError."""
    if is_repeatable(action):
        _expect(action, value, list)
        return [_one(parser, action, one) for one in value]
    if action.nargs == 0:
        _expect(action, value, bool)
        return action.const if value else action.default
    if action.nargs == "?" and value is True:
        return action.const
    return _one(parser, action, value)


def _one(parser: Parser, action: argparse.Action, value: Any) -> Any:
    _expect(action, value, *(action.type.kinds if isinstance(action.type, Number) else (str,)))
    if value == "":
        raise argparse.ArgumentError(action, "empty value; leave it out for its default")
    found = parser._get_value(action, str(value))
    parser._check_value(action, found)
    return found


def _expect(action: argparse.Action, value: Any, *kinds: type) -> None:
    if type(value) not in kinds:
        wanted = KINDS[kinds[-1]]
        given = KINDS.get(type(value), "a time")
        raise argparse.ArgumentError(action, f"expected {wanted}, not {given}")
