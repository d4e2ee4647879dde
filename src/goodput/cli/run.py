"""`goodput run SCRIPT`: run a training script, or any command that starts some, with goodput.auto imported first.

The command replaces this process (exec), so signals, output and exit status are its own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time

from goodput.cli import fail, message, number
from goodput.nccl.library import variables
from goodput.progress import KUBEFLOW_URL

DESCRIPTION = """Run a Python script (or -m MODULE, or a launcher such as torchrun) with PyTorch measured
automatically in every Python process that it starts. The command replaces this process (exec).
On the node of rank 0 one line shows the progress of the job, where the number of steps is known
(goodput.progress, Trainers); when the training ends, rank 0 prints its account on standard error."""
EPILOG = """examples: goodput run train.py --epochs 3
          goodput run --name my-run torchrun --nproc-per-node 2 train.py"""


def add_options(parser) -> None:
    add = parser.add_argument
    add("--name", metavar="RUN", help="name of the run (default: the launcher's job, else the script)")
    add(
        "--directory",
        help="folder of the rank pages (default: $GOODPUT_DIR, else /run/goodput if there is one, else /dev/shm/goodput)",
    )
    add("--quiet", action="store_true", help="print no progress, and no account at the end")
    add("--no-progress", action="store_true", help="print no progress")
    add("--progress-interval", metavar="SECONDS", type=number(float, 0.1, 86_400, " seconds"), default=60.0,
        help="without a terminal: time between two lines of progress (default: %(default)g)")  # fmt: skip
    add("-m", dest="module", action="store_true", help="SCRIPT is a module, as in python -m")
    add("script", metavar="SCRIPT", help="a Python script, a module after -m, or a command")
    add("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")


def call(arguments) -> int:
    command = command_of(arguments.script, arguments.arguments, arguments.module)
    if command is None:
        return fail("run", f"{arguments.script}: no such script or command", 2)
    flag = isolating_flag(command)
    if flag:
        message("run", f"{flag} makes Python ignore PYTHONPATH or site packages, so nothing is measured")
    environ = environment(os.environ, arguments)
    start_sampler(environ)
    start_keeper(environ, arguments.quiet)
    start_progress(environ, 0.0 if arguments.quiet or arguments.no_progress else arguments.progress_interval)
    sys.stdout.flush()
    try:
        os.execve(command[0], command, environ)
    except OSError as error:
        return fail("run", f"{command[0]}: {error.strerror}", 2)


def start_sampler(environ: dict[str, str]) -> None:
    """Start the process that samples stacks in time without a phase."""
    _start_beside("goodput.stack_samples.beside_run", environ)


def start_keeper(environ: dict[str, str], is_quiet: bool) -> None:
    """Start the process that keeps the run's log."""
    from goodput.kept_runs.folder import settings_of

    if settings_of(environ) is not None:
        _start_beside("goodput.kept_runs.beside_run", environ, f"{is_quiet:d}", keeps_stderr=True)


def start_progress(environ: dict[str, str], plain_seconds: float) -> None:
    """Start the process that shows the progress, or with 0 seconds the one that reports to Kubeflow Trainer alone."""
    if plain_seconds or environ.get(KUBEFLOW_URL):
        _start_beside("goodput.progress.beside_run", environ, f"{plain_seconds:g}", keeps_stderr=True)


def _start_beside(module: str, environ: dict[str, str], *arguments: str, keeps_stderr: bool = False) -> None:
    """Run a module with the folder of the pages and this process's pid; it is no child of the command."""
    if environ.get("GOODPUT_DISABLE", "") not in ("", "0") or not os.path.isdir("/proc"):
        return
    from goodput.rank_page.page import default_directory

    directory = os.path.abspath(default_directory(environ))
    call = [sys.executable, "-m", module, directory, str(os.getpid()), *arguments]
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        own = {name: value for name, value in os.environ.items() if name != "GOODPUT_AUTO"}
        null = subprocess.DEVNULL
        error = None if keeps_stderr else null
        # Modules in the current directory must not replace the standard library's.
        subprocess.Popen(
            call, env=own, cwd="/", start_new_session=True, stdin=null, stdout=null, stderr=error
        )
    finally:
        os._exit(0)


def command_of(script: str, arguments: list[str], module: bool) -> list[str] | None:
    """The command line to execute; None if there is no such script or command."""
    if module:
        return [sys.executable, "-m", script, *arguments]
    if os.path.isdir(script) and os.path.exists(os.path.join(script, "__main__.py")):
        return [sys.executable, script, *arguments]
    if os.path.isfile(script) and (script.endswith((".py", ".pyz")) or not os.access(script, os.X_OK)):
        return [sys.executable, script, *arguments]
    found = shutil.which(script)
    return None if found is None else [found, *arguments]


def isolating_flag(command: list[str]) -> str | None:
    """The Python option (-E, -I or -S) with which goodput.auto would not be imported, or None."""
    if not os.path.basename(command[0]).startswith(("python", "pypy")):
        return None
    flags = iter(command[1:])
    for flag in flags:
        if not flag.startswith("-") or flag in ("-", "--") or flag[1] in "mc":
            return None
        if flag in ("-W", "-X"):
            next(flags, None)
        elif not flag.startswith(("--", "-W", "-X")) and set(flag) & set("EIS"):
            return flag
    return None


def environment(environ, arguments) -> dict[str, str]:
    """The environment in which every Python imports goodput.auto, and NCCL loads the profiler plugin."""
    import goodput.bootstrap

    # Processes without ranks share a run's name only within one launch.
    changed = dict(environ, GOODPUT_AUTO="1", GOODPUT_LAUNCH=f"{os.getpid()}-{time.time_ns():x}")
    before = changed.get("PYTHONPATH")
    changed["PYTHONPATH"] = os.pathsep.join(
        [next(iter(goodput.bootstrap.__path__)), *([before] if before else [])]
    )
    changed.update(variables(changed))
    if arguments.name:
        changed["GOODPUT_RUN"] = arguments.name
    if arguments.directory:
        changed["GOODPUT_DIR"] = arguments.directory
    if not arguments.quiet:
        changed["GOODPUT_REPORT"] = "1"
    return changed
