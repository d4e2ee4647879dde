"""Runs programs without goodput, each in a fork of a process that has imported PyTorch.

Each line of standard input is a program's path and the path of its result, separated by a tab; the answer is the exit
status of its process.
"""

import os
import runpy
import sys

import torch  # noqa: F401


def main() -> None:
    for line in sys.stdin:
        script, written = line.rstrip("\n").split("\t")
        child = os.fork()
        if not child:
            sys.argv = [script, written]
            os.dup2(2, 1)
            os.chdir(os.path.dirname(written))
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            runpy.run_path(script, run_name="__main__")
            sys.exit()
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
