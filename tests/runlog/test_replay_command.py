"""`goodput replay`: exit status, documents, standard error, progress on a terminal."""

from __future__ import annotations

import gzip
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from support.account.run_logs import BASE, HEAD, step

MAIN = "import sys; from goodput.cli import main; sys.exit(main())"
EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "example-run.jsonl"


def call(*arguments, **more) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", MAIN, "replay", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=300, **{"text": True, **more})


def goodput(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", MAIN, *map(str, arguments)], capture_output=True, timeout=300, text=True
    )


@pytest.mark.parametrize(
    "command", ["replay FILE", "compare FILE WHOLE", "whatif FILE", "export FILE --perfetto TRACE"]
)
def test_log_cut_off_in_gzip_ends_with_status_1(tmp_path, command):
    """What can be read is used, and all commands that read a log say what is missing."""
    cut, whole = tmp_path / "cut.jsonl.gz", tmp_path / "whole.jsonl"
    whole.write_bytes(HEAD + b"".join(step(i + 1, i, f',"samples":{i * i % 89}') for i in range(2000)))
    cut.write_bytes(gzip.compress(whole.read_bytes())[:-500])
    paths = {"FILE": cut, "WHOLE": whole, "TRACE": tmp_path / "trace"}
    done = goodput(*(paths.get(word, word) for word in command.split()))
    assert done.returncode == 1
    assert "the file cannot be read after line 1" in done.stderr
    assert done.stdout or paths["TRACE"].stat().st_size


def test_example_of_the_definitions():
    done = call(EXAMPLE, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    (found,) = map(json.loads, done.stdout.splitlines())
    assert found["states"]["productive"] == 58.5 and found["states"]["lost"] == 26.0
    assert found["steps"] == {"kept": 18, "lost": 4}
    assert found["log"]["lines"] == 40 and found["log"]["problems"] == []
    assert call(EXAMPLE, "--json").stdout == done.stdout
    shown = call(EXAMPLE)
    assert shown.returncode == 0 and "goodput 31.1 %" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((), 2, "FILE"),
        ((EXAMPLE, "--no-such"), 2, "--no-such"),
        ((EXAMPLE, "--stall-seconds", "0"), 2, "--stall-seconds"),
        ((EXAMPLE, "--stall-seconds", "inf"), 2, "--stall-seconds"),
        ((EXAMPLE, "--stall-seconds", "nan"), 2, "--stall-seconds"),
        ((EXAMPLE, "--start", "nan"), 2, "--start"),
        ((EXAMPLE, "--end", "1e300"), 2, "--end"),
        ((EXAMPLE, "--start", "5", "--end", "4"), 2, "--start must not be after"),
        (("no-such-file",), 1, "no run 'no-such-file'"),
        (("/",), 1, "/: Is a directory"),
        ((EXAMPLE, "--run", "other"), 1, "no run 'other'; the log has example"),
        (("/dev/null",), 1, "no attempt, step or beat of any rank in 0 lines"),
    ],
)
def test_exit_status_and_messages(arguments, status, message):
    done = call(*arguments)
    assert done.returncode == status
    assert message in done.stderr and done.stdout == ""
    assert "Traceback" not in done.stderr


def test_help_has_an_example():
    done = call("--help")
    assert done.returncode == 0 and "example: goodput replay" in done.stdout


def test_standard_input(tmp_path):
    for raw in (EXAMPLE.read_bytes(), gzip.compress(EXAMPLE.read_bytes())):
        done = call("-", "--json", input=raw, text=False)
        assert done.returncode == 0 and json.loads(done.stdout)["run"] == "example"
    done = call("-", input=b"", text=False)
    assert done.returncode == 1 and b"standard input: no attempt" in done.stderr


def test_standard_input_that_is_closed():
    command = [sys.executable, "-c", MAIN, "replay", "-"]
    done = subprocess.run(
        ["sh", "-c", '"$@" <&-', "sh", *command], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1 and "standard input is closed" in done.stderr


def test_one_document_per_line_and_problems_on_standard_error(tmp_path):
    path = tmp_path / "log"
    second = BASE.replace(b'"run":"r1"', b'"run":"r2"')
    path.write_bytes(BASE + b"broken\n" + second)
    done = call(path, "--json")
    assert done.returncode == 0
    documents = [json.loads(line) for line in done.stdout.splitlines()]
    assert [found["run"] for found in documents] == ["r1", "r2"]
    assert all(found["log"]["problems"][0]["line"] == 8 for found in documents)
    assert done.stderr == "goodput replay: line 8: JSON is malformed: invalid character (byte 0)\n"
    (only,) = call(f"{path}#r2", "--json").stdout.splitlines()
    assert json.loads(only) == documents[1]


def test_names_have_no_control_characters(tmp_path):
    path = tmp_path / "log"
    evil = "\\u001b[31m\\u0007\\r\\nFAKE\\u202e\\u009b2J"
    line = f'{{"kind":"run","time":0,"run":"{evil}"}}\n{{"kind":"{evil}","{evil}":1}}\n'
    host = BASE.split(b"\n", 1)[1].replace(b'"attempt","time"', f'"attempt","host":"{evil}","time"'.encode())
    path.write_bytes(line.encode() + host + b'{"kind":"beat","time":"' + evil.encode() + b'"}\n')
    for arguments in ((path,), (path, "--run", "no\x1b[31m"), (f"{tmp_path}/no\x1b[31m",)):
        done = call(*arguments)
        text = done.stdout + done.stderr
        assert text and not [
            c for c in text if c != "\n" and (ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or c == "\u202e")
        ]
        assert "\nFAKE" not in text


def test_windows_by_option(tmp_path):
    whole = json.loads(call(EXAMPLE, "--json").stdout)
    halves = [json.loads(call(EXAMPLE, "--json", *w).stdout) for w in (("--end", "58"), ("--start", "58"))]
    assert (halves[0]["start"], halves[0]["end"], halves[1]["start"]) == (0, 58, 58)
    for state, seconds in whole["states"].items():
        assert sum(half["states"][state] for half in halves) == seconds, state
    for half in halves:
        assert sum(half["states"].values()) == pytest.approx(half["gpu_seconds"], abs=1e-9)


def on_a_terminal(*arguments) -> tuple[str, str]:
    """(standard output, standard error), the latter being a terminal."""
    ours, theirs = pty.openpty()
    at_once = "from goodput.cli.parsing import progress_line; progress_line.SHOWN_AFTER = 0; "
    command = [sys.executable, "-c", at_once + MAIN, "replay", *map(str, arguments)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, "TERM": "xterm"}
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    out = process.stdout.read().decode()
    assert process.wait(120) == 0
    process.stdout.close()
    os.close(ours)
    return out, seen.decode()


def test_progress_on_a_terminal_only(tmp_path):
    path = tmp_path / "log"
    beats = b"".join(b'{"kind":"beat","time":%d,"rank":0,"attempt":1}\n' % (6 + i) for i in range(30_000))
    path.write_bytes(BASE + beats)
    out, shown = on_a_terminal(path, "--json")
    assert "reading" in shown and "%" in shown
    assert json.loads(out)["run"] == "r1"
    quiet = call(path, "--json")
    assert quiet.stderr == "" and quiet.stdout == out
