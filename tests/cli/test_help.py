"""Every command's help fits a terminal of 80 columns, and its examples stay calls that a shell takes."""

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import goodput.cli
from goodput.cli import COMMANDS, PURPOSE, command_names, main, parser
from goodput.cli.parsing.parser import HelpFormatter


def commands(found: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """All parsers below this one, by their call."""
    below = {found.prog: found}
    for action in found._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                below |= commands(one)
    return below


@pytest.mark.parametrize("columns", ["80", "200"])
def test_help_fits_the_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    found = commands(parser())
    assert {"goodput", "goodput report", "goodput probe loader"} <= set(found)
    for name, one in found.items():
        for line in one.format_help().splitlines():
            assert len(line) <= int(columns), (name, line)


def test_prose_is_wrapped_and_examples_stay_lines():
    text = "One two three four\nfive.\n\nexamples:\n  call --a 1    does\n  call --long 1234 --more 5    does that\n"
    assert HelpFormatter("x")._fill_text(text, 20, "").splitlines() == [
        "One two three four",
        "five.",
        "",
        "examples:",
        "  call --a 1    does",
        "  call --long 1234 \\",
        "      --more 5",
        "      does that",
    ]


def test_wrapped_calls_are_the_calls_of_the_wide_help(monkeypatch):
    calls = {}
    for columns in ("80", "300"):
        monkeypatch.setenv("COLUMNS", columns)
        texts = (one.format_help() for one in commands(parser()).values())
        lines = (line for text in texts for line in re.sub(r" \\\n\s+", " ", text).splitlines())
        calls[columns] = [
            shlex.split(re.split(r"\s{2,}", line)[0])
            for line in map(str.strip, lines)
            if line.startswith("goodput ")
        ]
    narrow = [call for call in calls["80"] if call[1] != "usage:"]
    assert len(narrow) > 20 and [words for words in calls["300"] if words not in narrow] == []


def test_goodput_alone_prints_the_commands_by_what_they_are_for(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    for words in ([], ["--help"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 0
    shown = capsys.readouterr().out
    names = command_names()
    places = [shown.index(f"{title}:") for title in COMMANDS]
    assert places == sorted(places) and shown.count(PURPOSE) == 2
    for name in names:
        assert len(re.findall(rf"^  {name} +\w", shown, re.MULTILINE)) == 2, name


@pytest.mark.parametrize(
    ("word", "hint"),
    [("reprot", "did you mean report"), ("comparé", "did you mean compare?"), ("zzz", "`goodput` alone lists the commands")],
)  # fmt: skip
def test_unknown_command_says_what_may_be_meant(capsys, word, hint):
    assert main([word, "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith(f"goodput: there is no command '{word}'; {hint}")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve", "--lissten", "127.0.0.1:0"], "goodput serve: error: unrecognized option --lissten; did you mean --listen?"),
        (["node", "--push-intervall=3"], "goodput node: error: unrecognized option --push-intervall; did you mean --push-interval"),
        (["token", "list", "--fil", "x", "--jsn"], "goodput token list: error: unrecognized option --jsn; did you mean --json?"),
        (["run", "--nmae", "x", "train.py"], "goodput run: error: unrecognized option --nmae; did you mean --name?"),
        (["top", "--\x1b[2Jzzz"], "goodput top: error: unrecognized option --?[2Jzzz\n"),
    ],
)  # fmt: skip
def test_unknown_option_says_what_may_be_meant(capsys, words, said):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_options_of_the_script_are_not_checked(capsys):
    """What follows SCRIPT is the script's."""
    found = parser(["run"]).parse_args(["run", "train.py", "--nmae", "x"])
    assert found.arguments == ["--nmae", "x"]


def test_old_spellings_are_not_suggested(capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--stall-secnds", "3"])
    assert "--stall-seconds" not in capsys.readouterr().err.splitlines()[-1]


def test_every_file_of_the_folder_is_a_command():
    files = {path.stem for path in Path(goodput.cli.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == set(command_names())


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_and_version_load_no_command(word):
    """Loading them takes longer than all else."""
    code = f"""
import sys
from goodput.cli import command_names, main
try:
    main([{word!r}])
finally:
    print([name for name in command_names() if f"goodput.cli.{{name}}" in sys.modules], file=sys.stderr)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "[]\n") and ended.stdout


def test_option_before_the_command_is_named(capsys):
    assert main(["--stall", "3", "report"]) == 2
    assert capsys.readouterr().err.startswith("goodput: unrecognized option --stall; a command comes first")
