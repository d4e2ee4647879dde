"""Series that are not goodput's own, read from the Prometheus text format 0.0.4.

Read as strictly as by Prometheus' own parser for it (expfmt of prometheus/common), which node_exporter uses: text that has one
malformed line has no series at all, since it may have been read while it was written.
https://prometheus.io/docs/instrumenting/exposition_formats/

    (family,) = parse_families('# TYPE raid_degraded gauge\\nraid_degraded{array="md0"} 1\\n')
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

KINDS = ("counter", "gauge", "histogram", "summary", "untyped")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_LABEL_VALUE = re.compile(r'"((?:[^"\\]|\\.)*)"')
_BLANKS = re.compile(r"[ \t]*")
_COMMENT = re.compile(r"#[ \t]*(HELP|TYPE)(?:[ \t]+(.*))?")
_WORD = re.compile(r"[^ \t]*")
_NUMBER = re.compile(
    r"nan|[+-]?(?:inf|infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)", re.IGNORECASE
)
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"\\": "\\", "n": "\n", '"': '"'}
# Of the samples of one family, by its kind.
SUFFIXES = {"histogram": ("_bucket", "_count", "_sum"), "summary": ("_count", "_sum")}
_BOUND = {"histogram": "le", "summary": "quantile"}


class MalformedText(ValueError):
    """The text is not in the format; says in which line and why."""


class TimestampedText(MalformedText):
    """A sample has a time of its own, which may be long ago."""


class ForeignSample(NamedTuple):
    """`labels` are in the order of their names, without empty ones, which are as good as absent."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


@dataclass
class ForeignFamily:
    """`kind` is one of KINDS, "" before it is known; `help` is "" where the text has none."""

    name: str
    kind: str = ""
    help: str = ""
    samples: list[ForeignSample] = field(default_factory=list)


def parse_families(text: str) -> list[ForeignFamily]:
    """The families that have samples, in their order. Raises MalformedText."""
    families: dict[str, ForeignFamily] = {}
    *lines, rest = text.split("\n")
    for number, line in enumerate(lines, 1):
        try:
            _add_line(families, line.lstrip(" \t"))
        except MalformedText as error:
            raise type(error)(f"line {number}: {error}") from None
    if rest.strip(" \t"):
        raise MalformedText(f"line {len(lines) + 1}: the last line does not end with a line feed")
    return [family for family in families.values() if family.samples]


def _add_line(families: dict[str, ForeignFamily], line: str) -> None:
    if line.startswith("#"):
        comment = _COMMENT.fullmatch(line)
        if comment and comment[2]:
            _add_comment(families, comment[1], comment[2])
    elif line:
        _add_sample(families, line)


def _add_comment(families: dict[str, ForeignFamily], keyword: str, rest: str) -> None:
    name = _match(_NAME, rest, 0, "a metric name")
    text = rest[len(name) :]
    if text[:1] not in ("", " ", "\t"):
        raise MalformedText(f"no metric name in {rest[:60]!r}")
    text, family = text.lstrip(" \t"), _family(families, name)
    if keyword == "HELP":
        if family.help:
            raise MalformedText(f"a second HELP line for {name}")
        family.help = _unescaped(text, "\\n")
    elif text:
        if family.kind:
            raise MalformedText(f"a second TYPE line for {name}, or one after its samples")
        if text.lower() not in KINDS:
            raise MalformedText(f"unknown type {text[:40]!r} of {name}")
        family.kind = text.lower()


def _add_sample(families: dict[str, ForeignFamily], line: str) -> None:
    name = _match(_NAME, line, 0, "a metric name")
    at, labels = _skip(line, len(name)), {}
    if line[at : at + 1] == "{":
        at = _skip(line, _read_labels(line, at + 1, labels))
    word = _match(_WORD, line, at, "a value")
    value = parse_value(word)
    # Not even blanks may follow.
    if rest := line[at + len(word) :]:
        if not _INTEGER.fullmatch(rest.strip(" \t")):
            raise MalformedText(f"no end of the line after {word}")
        raise TimestampedText(f"{name} has a timestamp")
    family = _family(families, name)
    family.kind = family.kind or "untyped"
    _check_bound(family, name, labels)
    family.samples.append(ForeignSample(name, tuple(sorted((k, v) for k, v in labels.items() if v)), value))


def _check_bound(family: ForeignFamily, name: str, labels: dict[str, str]) -> None:
    """Raises MalformedText for a sample that a histogram or a summary cannot have."""
    bound = _BOUND.get(family.kind)
    needs_bound = bound is not None and not name.endswith(("_count", "_sum"))
    if bound is None or not (needs_bound or bound in labels):
        return
    if needs_bound and (bound not in labels or (family.kind == "histogram" and name == family.name)):
        raise MalformedText(f"{name} is no sample of a {family.kind}: no label {bound}")
    parse_value(labels[bound])


def _read_labels(line: str, at: int, labels: dict[str, str]) -> int:
    """Add the labels that begin there; returns where they end."""
    while True:
        at = _skip(line, at)
        if line[at : at + 1] == "}":
            return at + 1
        name = _match(_LABEL_NAME, line, at, "a label name")
        at = _skip(line, at + len(name))
        if line[at : at + 1] != "=":
            raise MalformedText(f"no '=' after label {name}")
        value = _LABEL_VALUE.match(line, _skip(line, at + 1))
        if value is None:
            raise MalformedText(f"no value in quotes for label {name}")
        if name == "__name__" or name in labels:
            raise MalformedText(f"label {name} is reserved or there twice")
        # What a terminal or a browser would act on is not passed on; a line feed is written as an escape.
        text = _unescaped(value[1], '\\n"')
        labels[name] = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
        at = _skip(line, value.end())
        if line[at : at + 1] == ",":
            at += 1
        elif line[at : at + 1] != "}":
            raise MalformedText(f"neither ',' nor '}}' after label {name}")


def parse_value(word: str) -> float:
    """A number as Go reads it. Raises MalformedText."""
    if not _NUMBER.fullmatch(word):
        raise MalformedText(f"{word[:40]!r} is no number")
    value = float(word)
    if value in (float("inf"), float("-inf")) and "i" not in word.lower():
        raise MalformedText(f"{word[:40]!r} is too large")
    return value


def _family(families: dict[str, ForeignFamily], name: str) -> ForeignFamily:
    """The family of a sample: x_sum and x_count belong to the histogram or summary x, x_bucket to the histogram x, if declared."""
    if name in families:
        return families[name]
    for kind in ("summary", "histogram"):
        for suffix in SUFFIXES[kind]:
            of = families.get(name.removesuffix(suffix)) if name.endswith(suffix) else None
            if of is not None and of.kind == kind:
                return of
    return families.setdefault(name, ForeignFamily(name))


def _unescaped(text: str, allowed: str) -> str:
    def one(match: re.Match) -> str:
        if match[1] not in allowed:
            raise MalformedText(f"unknown escape {match[0]!r}")
        return _ESCAPES[match[1]]

    if text.endswith("\\") and (len(text) - len(text.rstrip("\\"))) % 2:
        raise MalformedText("a backslash at the end of the line")
    return _ESCAPE.sub(one, text)


def _match(pattern: re.Pattern, line: str, at: int, what: str) -> str:
    found = pattern.match(line, at)
    if found is None or not found[0]:
        raise MalformedText(f"no {what.removeprefix('a ')} in {line[at : at + 60]!r}")
    return found[0]


def _skip(line: str, at: int) -> int:
    """Where the next character is that is neither a blank nor a tab."""
    found = _BLANKS.match(line, at)
    return found.end() if found else at
