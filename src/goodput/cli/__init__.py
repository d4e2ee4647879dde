"""The command `goodput`: one file per command, with its line in COMMANDS.

A command is a module with DESCRIPTION and EPILOG, `add_options(parser)`, and `call(arguments)`, which returns the exit
status: 0 success, 1 the work failed, 2 a wrong call. Ctrl-C exits with 130, without a traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable

from goodput import __version__
from goodput.cli.parsing.parser import HelpFormatter, Number, Parser, nearest, printable

PURPOSE = "Was every second of every GPU useful work, and if not, why, and which rank?"
# What commands are for, in the order of the help, and what each does. The help does not load the commands, which takes
# longer than all else.
COMMANDS = {
    "run a training": {
        "demo": "train a small model with planted faults and account for it",
        "run": "run a training script with automatic measurement",
        "up": "run the whole stack on this machine; Ctrl-C ends it",
    },
    "look at runs and machines": {
        "analyze": "show where the time of traced steps went",
        "export": "write a run as a run log, Perfetto trace, or histograms",
        "mcp": "answer assistants' questions about runs, by MCP on stdio",
        "probe": "measure what this machine, or a data loader, can do",
        "replay": "print the account of a kept run or of a run log",
        "report": "print the account of the runs on this machine",
        "runs": "list the runs that are kept on this machine",
        "top": "show runs and ranks live on a terminal",
    },
    "compare and decide": {
        "compare": "compare the steps of two runs, with confidence intervals",
        "whatif": "say what each change to a run would be worth, with intervals",
    },
    "operate a cluster": {
        "completion": "print the shell's completion of these commands",
        "end": "tell the aggregator that a run is over",
        "ledger": "show, compact, check and back up the ledger, and delete runs",
        "node": "run the agent of this node",
        "provision": "make certificates, tokens and options of a head and its nodes",
        "serve": "run the aggregator: accounts, API, page and series of all runs",
        "simulate": "simulate a cluster with planted faults, and check the account",
        "token": "create, list and revoke access tokens",
    },
}
ALONE = ("-h", "--help", "--version")  # options of goodput itself, for which no command is loaded
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
EXTRAS = {
    "demo": ("rich", "numpy"),
    "mcp": ("mcp", "mcp_types", "pydantic"),
    "node": ("prometheus_client", "msgspec", "httpx"),
    "otlp": ("opentelemetry", "google", "requests"),
}
READERS = ("export", "replay")  # commands that need msgspec and NumPy for run logs alone
# A cycle of objects that was frozen before it became garbage stays for so long, or so many times as long as a full
# collection takes.
FULL_COLLECTION_SECONDS, FULL_TIMES = 3600.0, 10_000
# See _FreezeSurvivors.
YOUNG_SECONDS, YOUNG_TIMES, YOUNG_GROWTH_MAX = 10.0, 100, 4
COLUMNS, COLUMNS_MIN, COLUMNS_MAX = 80, 60, 200
SECONDS_MAX = 4.6e9  # 146 years, as in run logs


def parser(names: Iterable[str] | None = None) -> argparse.ArgumentParser:
    """The command line with these commands, by default with all; others are not loaded, but the help has their lines."""
    top = Parser(
        prog="goodput",
        description=f"{PURPOSE}\n\n{_grouped()}",
        epilog="example: goodput demo\n\n`goodput COMMAND --help` has a command's options and examples.",
        formatter_class=HelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"goodput {__version__}")
    subparsers = top.add_subparsers(metavar="COMMAND", required=True, help="one of those above")
    for name in command_names() if names is None else names:
        command = importlib.import_module(f"{__name__}.{name}")
        added = subparsers.add_parser(
            name,
            description=command.DESCRIPTION,
            epilog=command.EPILOG,
            formatter_class=HelpFormatter,
        )
        added.set_defaults(call=command.call)
        command.add_options(added)
    return top


def _grouped() -> str:
    """The commands with what each does, by what they are for."""
    width, lines = max(map(len, command_names())), []
    for title, commands in COMMANDS.items():
        lines += [f"{title}:", *(f"  {name:{width}}  {does}" for name, does in commands.items()), ""]
    return "\n".join(lines).rstrip()


def _wrong_first_word(word: str) -> int:
    """Say which commands are meant by a word that is none."""
    near = nearest(word, command_names())
    meant = f"did you mean {' or '.join(near)}?" if near else "`goodput` alone lists the commands"
    text = f"there is no command {printable(word)!r}; {meant}"
    if word.startswith("-"):
        text = f"unrecognized option {printable(word)}; a command comes first, then its options"
    print(f"goodput: {text}", file=sys.stderr)
    return 2


def command_names() -> list[str]:
    return sorted(name for commands in COMMANDS.values() for name in commands)


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


def number(kind: type[int] | type[float], minimum: float, maximum: float, unit: str = "") -> Number:
    """An argparse type: a number within these bounds."""
    return Number(kind, minimum, maximum, unit)


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
    words = words or ["--help"]
    is_alone = words[0] in ALONE
    if not is_alone and words[0] not in command_names():
        return _wrong_first_word(words[0])
    with loading():
        chosen = parser([] if is_alone else words[:1]).parse_args(words)
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
        if error.filename is not None:
            return fail(words[0], os_error_text(error))
        if error.errno not in NOT_WRITTEN:
            raise
        _discard_output()
        print(f"goodput: cannot write: {error.strerror}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        name = (error.name or "").split(".")[0]
        extra = next((extra for extra, names in EXTRAS.items() if name in names), "server")
        if name in ("msgspec", "numpy") and words[0] in READERS:
            extra = "compare"
        text = f"goodput: this command needs {name}: pip install 'goodput-telemetry[{extra}]'"
        print(text, file=sys.stderr)
        return 1
    except Exception as error:
        core = sys.modules.get("goodput._core")  # It takes a while to import, and few commands need it.
        if core is None or not isinstance(error, core.CoreError):
            raise
        return fail(words[0], error)
