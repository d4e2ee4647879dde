"""`goodput completion SHELL`: the script by which a shell completes commands and options, made by shtab."""

from __future__ import annotations

import argparse

from goodput.cli import COMMANDS, fail, parser

DESCRIPTION = """Print the script by which a shell completes goodput's commands, options and their choices. It is made
from this version's options: print it again after an update. Needs shtab."""
EPILOG = """examples:
  goodput completion bash > ~/.local/share/bash-completion/completions/goodput
  goodput completion zsh > ~/.zfunc/_goodput              a folder of $fpath
  goodput completion tcsh > ~/.goodput.csh                and source it in ~/.tcshrc"""
SHELLS = ("bash", "zsh", "tcsh")


def add_options(parser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash, zsh or tcsh")


def call(arguments) -> int:
    try:
        import shtab
    except ModuleNotFoundError:
        return fail("completion", "shtab is missing: pip install 'goodput-telemetry[completion]'")
    print(shtab.complete(described_parser(), shell=arguments.shell))
    return 0


def described_parser() -> argparse.ArgumentParser:
    """All commands, with their lines beside their names, without which shtab leaves them out."""
    top = parser()
    (commands,) = (one for one in top._actions if isinstance(one, argparse._SubParsersAction))
    for name, does in (row for group in COMMANDS.values() for row in group.items()):
        commands._choices_actions.append(commands._ChoicesPseudoAction(name, (), does))
    return top
