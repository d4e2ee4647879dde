"""The script of `goodput completion bash` completes commands, options and choices in a real bash."""

import shutil
import subprocess
import sys

import pytest
from support.installed import need

from goodput.cli import command_names, main

need("shtab")


def completed(script: str, *words: str) -> set[str]:
    """What bash offers for the last word."""
    code = f"""
{script}
COMP_WORDS=({" ".join(f"'{word}'" for word in words)})
COMP_CWORD={len(words) - 1}
_shtab_goodput goodput "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return {line.strip() for line in done.stdout.splitlines()}


@pytest.mark.skipif(shutil.which("bash") is None, reason="not installed: bash")
def test_bash_completes_commands_options_and_choices(capsys):
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert set(command_names()) <= completed(script, "goodput", "")
    assert completed(script, "goodput", "node", "--push") == {"--push-interval"}
    assert completed(script, "goodput", "token", "create", "--scope", "") >= {"ingest", "read", "metrics"}
    assert "--stall-seconds" not in completed(script, "goodput", "serve", "--stall")


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_get_a_script(capsys, shell):
    assert main(["completion", shell]) == 0
    shown = capsys.readouterr().out
    assert "goodput" in shown and "simulate" in shown


def test_missing_shtab_is_said(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "pip install 'goodput-telemetry[completion]'" in capsys.readouterr().err
