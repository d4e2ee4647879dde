"""Ways in which a file of sysfs or procfs can be broken, and checks of what must survive them."""

from __future__ import annotations

import os
import shutil

from prometheus_client import generate_latest

from goodput_exporters.collector import ParseError

BREAKS = {
    "junk": lambda path: path.write_bytes(b"\xff\xfe\0junk\n"),
    "empty": lambda path: path.write_text(""),
    "long": lambda path: path.write_text("1" * 100_000),
    "directory": lambda path: path.mkdir(),
    "loop": lambda path: path.symlink_to(path.name),
    "fifo": os.mkfifo,
    "missing": lambda path: None,
}


def break_file(path, how: str) -> None:
    """Replace a file or a directory by something else."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    BREAKS[how](path)


def parse_or_raise(parse, text: str, is_valid=lambda value: True) -> None:
    """Fail where a parser raises anything but ParseError, or returns something invalid."""
    try:
        value = parse(text)
    except ParseError:
        return
    assert is_valid(value)


def exposition(families) -> bytes:
    """The families as prometheus_client writes them."""
    return generate_latest(type("Registry", (), {"collect": lambda self: iter(families)})())
