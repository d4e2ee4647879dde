"""Runs Python scripts, each in a fork of this process, which has imported the modules that argv names.

A line of standard input is JSON: the seconds allowed, and for each process to run at the same time its arguments (the
script first after any "-m" and a module to import before it, or "-c" and code), environment, directory and the files for its output. The answer is a line with their exit statuses.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import time
import types


class Child:
    """A forked process; `status` is None until it has ended, and -9 if it was killed for taking too long."""

    def __init__(self, process: dict):
        self.status: int | None = None
        self.pid = os.fork()
        if not self.pid:
            run(**process)

    def poll(self) -> bool:
        if self.status is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if ended else None
        return self.status is not None

    def kill(self) -> None:
        if not self.poll():
            os.kill(self.pid, signal.SIGKILL)
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def run(arguments: list[str], environment: dict[str, str], directory: str, out: str, errors: str) -> None:
    """Be a process that was started with these; ends in SystemExit."""
    os.environ.clear()
    os.environ.update(environment)
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, out, os.O_WRONLY),
        (2, errors, os.O_WRONLY),
    ):
        opened = os.open(path, flags | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(directory)
    first = arguments[1:2] if arguments[0] == "-m" else []
    arguments = arguments[2 * len(first) :]
    script = arguments[0]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if script == "-c":
        code, sys.path[0] = compile(arguments.pop(1), "<string>", "exec"), ""
    else:
        main.__file__, sys.path[0] = script, os.path.dirname(script)
        with open(script, "rb") as file:
            code = compile(file.read(), script, "exec")
    sys.argv[:] = arguments
    for module in first:
        importlib.import_module(module)
    exec(code, vars(main))
    sys.exit()


def main() -> None:
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # Collections of the forks do not look at what was imported here.
    for line in sys.stdin:
        request = json.loads(line)
        end = time.monotonic() + request["seconds"]
        children = [Child(process) for process in request["processes"]]
        while sum(child.poll() for child in children) < len(children) and time.monotonic() < end:
            time.sleep(0.002)
        for child in children:
            child.kill()
        print(json.dumps([child.status for child in children]), flush=True)


if __name__ == "__main__":
    main()
