"""The command `goodput`: one file per command; every file of this folder is loaded.

A command is a module with GROUP (one of GROUPS), HELP, DESCRIPTION and EPILOG, `add_options(parser)`, and `call(arguments)`, which returns the
exit status: 0 success, 1 the work failed, 2 a wrong call. Ctrl-C exits with 130, without a traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import itertools
import math
import os
import re
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Mapping
from types import ModuleType

from goodput import __version__

PURPOSE = "Was every second of every GPU useful work, and if not, why, and which rank?"
# What commands are for, in the order of the help.
GROUPS = {
    "run": "run a training:",
    "look": "look at runs and machines:",
    "compare": "compare and decide:",
    "operate": "operate a cluster:",
}
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
EXTRAS = {
    "demo": ("rich", "numpy"),
    "mcp": ("mcp", "mcp_types", "pydantic"),
    "node": ("prometheus_client", "msgspec", "httpx"),
    "otlp": ("opentelemetry", "google", "requests"),
}
READERS = ("export", "replay")  # commands that need msgspec for run logs alone
# A cycle of objects that was frozen before it became garbage stays for so long, or so many times as long as a full
# collection takes.
FULL_COLLECTION_SECONDS, FULL_TIMES = 3600.0, 10_000
# See _FreezeSurvivors.
YOUNG_SECONDS, YOUNG_TIMES, YOUNG_GROWTH_MAX = 10.0, 100, 4
_INDENT = " " * 6
COLUMNS, COLUMNS_MIN, COLUMNS_MAX = 80, 60, 200
SECONDS_MAX = 4.6e9  # 146 years, as in run logs


class Parser(argparse.ArgumentParser):
    """Rejects empty option values, which come from unset shell variables. Positional arguments may be empty."""

    def _get_values(self, action, arg_strings):
        if action.option_strings and "" in arg_strings:
            # Omitting an option without a default may weaken the command: --tokens.
            has_default = not action.required and action.default is not None
            advice = "omit it for its default" if has_default else "is a variable unset?"
            raise argparse.ArgumentError(action, f"empty value; {advice}")
        return super()._get_values(action, arg_strings)

    def parse_known_args(self, args=None, namespace=None):
        """Reject unknown options of a command here: argparse reports them with the usage of `goodput` alone."""
        found, rest = super().parse_known_args(args, namespace)
        if unknown := [word for word in rest if word.startswith("-")]:
            self.error(self._unknown_option(unknown[0].partition("=")[0]))
        return found, rest

    def _unknown_option(self, option: str) -> str:
        import difflib

        near = difflib.get_close_matches(option, self._option_string_actions, 1, 0.6)
        return f"there is no option {option!r}" + (f"; did you mean {near[0]}?" if near else "")


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


def parser(only: str | None = None) -> argparse.ArgumentParser:
    """The whole command line, or where `only` is a command's name what that command needs, which is loaded sooner."""
    names = command_names()
    chosen = {
        name: importlib.import_module(f"{__name__}.{name}") for name in ([only] if only in names else names)
    }
    top = Parser(
        prog="goodput",
        description=f"{PURPOSE}\n\n{_grouped(chosen)}",
        epilog="example: goodput demo\n\n`goodput COMMAND --help` has a command's options and examples.",
        formatter_class=HelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"goodput {__version__}")
    subparsers = top.add_subparsers(metavar="COMMAND", required=True, help="one of those above")
    for name, command in chosen.items():
        added = subparsers.add_parser(
            name,
            description=command.DESCRIPTION,
            epilog=command.EPILOG,
            formatter_class=HelpFormatter,
        )
        added.set_defaults(call=command.call)
        command.add_options(added)
    return top


def _grouped(commands: Mapping[str, ModuleType]) -> str:
    """The commands with what each does, by what they are for."""
    width, lines = max(map(len, commands)), []
    for group, title in GROUPS.items():
        own = [name for name, command in commands.items() if group == command.GROUP]
        lines += [title, *(f"  {name:{width}}  {commands[name].HELP}" for name in own), ""] if own else []
    return "\n".join(lines).rstrip()


def _unknown_command(word: str) -> int:
    """Say which commands are meant by a word that is none."""
    import difflib

    near = difflib.get_close_matches(word, command_names(), 3, 0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else "`goodput` alone lists the commands"
    shown = "".join(c if c.isprintable() else "?" for c in word[:80])
    print(f"goodput: there is no command {shown!r}; {hint}", file=sys.stderr)
    return 2


def command_names() -> list[str]:
    """The files of this folder."""
    files = (name for folder in __path__ for name in os.listdir(folder))
    return sorted(name.removesuffix(".py") for name in files if name.endswith(".py") and name[0] != "_")


def message(command: str, text: object) -> None:
    """Print a message of a command on standard error."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else "?" for c in str(text))
    print(f"goodput {command}: {shown}", file=sys.stderr)


def has_colour() -> bool:
    """Whether standard output is a terminal that may have colours (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_columns() -> int:
    """The width of the terminal between 60 and 200 columns; 80 where standard output is none."""
    if not sys.stdout.isatty():
        return COLUMNS
    with contextlib.suppress(OSError):
        return min(
            max(os.get_terminal_size(sys.stdout.fileno()).columns or COLUMNS, COLUMNS_MIN), COLUMNS_MAX
        )
    return COLUMNS


def os_error_text(error: OSError) -> str:
    """Without the error's number: "FILE: No such file or directory"."""
    text = error.strerror or str(error)
    return text if error.filename is None else f"{error.filename}: {text}"


def fail(command: str, problem: object, status: int = 1) -> int:
    """Print the problem and return the exit status."""
    message(command, problem)
    return status


def number(kind: type[int] | type[float], minimum: float, maximum: float, unit: str = ""):
    """An argparse type: a number within these bounds."""

    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not minimum <= value <= maximum:
            bounds = f"{minimum} to {maximum}" if kind is int else f"{minimum:g} to {maximum:g}"
            raise argparse.ArgumentTypeError(f"{text!r}: expected {bounds}{unit}")
        return value

    return parse


positive_seconds = number(float, 0.001, SECONDS_MAX, " seconds")


class OldSpelling(argparse.Action):
    """An option that goes on under its old name, with a warning; `new` is what to write instead."""

    def __init__(self, *names, new: str, **options):
        super().__init__(*names, help=argparse.SUPPRESS, **options)
        self._new = new

    def __call__(self, parser, namespace, values, option_string=None):
        message(parser.prog.partition(" ")[2], f"{option_string} is an old spelling of {self._new}")
        setattr(namespace, self.dest, values)


def tune_garbage_collector(young_objects_max: int) -> None:
    """For servers, whose objects live for hours and are hardly ever garbage: a full collection would walk all of them.

    Young objects are collected after so many allocations (default 700), or more where that takes too much of the time,
    and those that survive are walked again only by full collections (_FreezeSurvivors).
    """
    import gc

    gc.collect()
    gc.freeze()
    gc.set_threshold(young_objects_max, 5, 200)
    gc.callbacks.append(_FreezeSurvivors(young_objects_max))


def share_memory_arena() -> None:
    """For servers that start threads: let glibc's allocator keep one arena, not one for each thread, as M_ARENA_MAX.

    Freed memory of one thread is then used by the next: 3 MiB less in the agent, 11 in an aggregator of 10 000 ranks.
    Nothing where there is no glibc.
    """
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(-8, 1)


class _FreezeSurvivors:
    """A callback of the garbage collector: freezes what survives any collection, and unfreezes all for a seldom full one.

    A full one, 0.1 s for every ten thousand ranks, is done every FULL_COLLECTION_SECONDS or FULL_TIMES as long as it takes.
    Where those of young objects take more than a YOUNG_TIMES-th of YOUNG_SECONDS they are done half as often, with at most
    YOUNG_GROWTH_MAX times `young_objects_max` objects, which take 1 us each; where they take little, twice as often.
    """

    def __init__(self, young_objects_max: int):
        self._least, self._most = young_objects_max, YOUNG_GROWTH_MAX * young_objects_max
        self._unfrozen = self._counted = time.monotonic()
        self._began = self._young_took = self._full_took = 0.0  # CPU time
        self._is_full = False

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        import gc

        now = time.monotonic()
        if phase == "start":
            self._began = time.thread_time()
            wait = max(FULL_COLLECTION_SECONDS, FULL_TIMES * self._full_took)
            if info["generation"] == 2 and now - self._unfrozen >= wait:
                self._unfrozen, self._is_full = now, True
                gc.unfreeze()
            return
        gc.freeze()
        took = time.thread_time() - self._began
        if self._is_full:
            self._full_took, self._is_full = took, False
        else:
            self._young_took += took
        if now - self._counted >= YOUNG_SECONDS:
            self._adapt(self._young_took / (now - self._counted))
            self._counted, self._young_took = now, 0.0

    def _adapt(self, share: float) -> None:
        """`share` is the part of the time that collections of young objects take."""
        import gc

        young, *others = gc.get_threshold()
        if share * YOUNG_TIMES > 1:
            gc.set_threshold(min(2 * young, self._most), *others)
        elif share * YOUNG_TIMES < 1 / 8:
            gc.set_threshold(max(young // 2, self._least), *others)


def raise_file_limit(wanted: int) -> int:
    """Raise the soft limit of open files (often 1024) to at most `wanted`, if the hard limit allows; returns it."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


@contextlib.contextmanager
def loading():
    """While modules are imported, an interrupt ends the process at once.

    As an exception it might be raised in an import callback, where Python prints and ignores it, or in a compiled
    module that cannot handle it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread is interrupted.
        return
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _discard_output() -> None:
    """The interpreter's own flush at exit would print an error and exit with 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    if words and not words[0].startswith("-") and words[0] not in command_names():
        return _unknown_command(words[0])
    if not words:
        words = ["--help"]
    with loading():
        chosen = parser(words[0] if words else None).parse_args(words)
    try:
        status = chosen.call(chosen)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        # A second one would print a traceback of the exit.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return 1
    except OSError as error:
        if error.errno not in NOT_WRITTEN or error.filename is not None:
            raise
        _discard_output()
        print(f"goodput: cannot write: {error.strerror}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        name = (error.name or "").split(".")[0]
        extra = next((extra for extra, names in EXTRAS.items() if name in names), "server")
        if name == "msgspec" and words[0] in READERS:
            extra = "compare"
        text = f"goodput: this command needs {name}: pip install 'goodput-telemetry[{extra}]'"
        print(text, file=sys.stderr)
        return 1
