"""Runs `goodput probe` with the arguments, in a process that has imported PyTorch and has not used it."""

import sys

from goodput.cli import main

sys.exit(main(["probe", *sys.argv[1:]]))
