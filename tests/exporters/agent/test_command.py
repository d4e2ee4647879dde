"""`goodput node` in a process of its own."""

import os
import re
import signal
import subprocess
import sys
import threading

import httpx
import pytest
from support.node.aggregator import Aggregator
from support.node.node_command import command, run
from support.node.node_rank import Process, Rank
from support.node.node_tree import wait_until
from support.paths import PYTHONPATH

MS = 1_000_000


@pytest.fixture
def start():
    started = []

    def begin(*arguments, **environment) -> subprocess.Popen:
        call, environ = command("--listen", "127.0.0.1:0", *arguments, **environment)
        process = subprocess.Popen(
            call, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def url_of(process) -> str:
    line = process.stdout.readline()
    found = re.fullmatch(
        r"goodput node: reads (\S+), serves (http://\S+/metrics), pushes (nowhere|to \S+)\n", line
    )
    assert found, line + process.stderr.read()
    return found[2]


def test_help_has_an_example():
    shown = run("--help")
    assert shown.returncode == 0 and "goodput node --aggregator http" in shown.stdout
    for option in ("--directory", "--listen", "--aggregator", "--interval", "--push-interval", "--grace", "--sysfs",
                   "--procfs", "--once", "--token-file"):  # fmt: skip
        assert option in shown.stdout


def test_once_prints_one_exposition(tree):
    Rank(tree / "pages").step({"forward": MS})
    arguments = ("--directory", tree / "pages", "--sysfs", tree / "sys", "--procfs", tree / "proc")
    shown = run("--once", *arguments)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert 'goodput_steps_total{rank="0",run="r1"} 1.0' in shown.stdout
    assert "goodput_host_cpus 2.0" in shown.stdout and 'device="eth1"' in shown.stdout
    assert shown.stdout.endswith("\n") and not (tree / "pages" / ".agent.lock").exists()


def test_once_without_pages_or_roots(tmp_path):
    nowhere = str(tmp_path / "nowhere")
    shown = run("--once", "--directory", nowhere, "--sysfs", nowhere, "--procfs", nowhere)
    assert shown.returncode == 0 and 'goodput_node_pages{state="live"} 0.0' in shown.stdout
    assert not os.path.exists(nowhere)


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--listen", "9470"], "expected ADDRESS:PORT"),
        (["--listen", "localhost:http"], "expected ADDRESS:PORT"),
        (["--listen", "localhost:65536"], "expected ADDRESS:PORT"),
        (["--listen", "localhost:-1"], "expected ADDRESS:PORT"),
        (["--listen", "::1:9470"], "brackets"),
        (["--aggregator", "goodput.internal:9471"], "expected a URL"),
        (["--aggregator", "ftp://x"], "expected a URL"),
        (["--aggregator", "http://"], "expected a URL"),
        (["--aggregator", "http://x:99999"], "expected a URL"),
        (["--aggregator", "http://[x"], "expected a URL"),
        (["--interval", "-1"], "expected 0.01 to 86400 seconds"),
        (["--interval", "0"], "expected 0.01 to"),
        (["--interval", "nan"], "expected 0.01 to 86400 seconds"),
        (["--push-interval", "inf"], "expected 0.01 to 86400 seconds"),
        (["--push-interval", "soon"], "expected 0.01 to 86400 seconds"),
        (["--grace", "-0.1"], "expected 0 to 86400 seconds"),
        (["--grace", "1e9"], "expected 0 to 86400 seconds"),
        (["--token-file", "/nowhere/token"], "/nowhere/token"),
        (["--dcgm-fields", "/nowhere/counters.csv"], "/nowhere/counters.csv: No such file"),
        (["--unknown"], "unrecognized"),
        *(
            ([f"--{name}", value], "empty")
            for name in ("directory", "sysfs", "procfs", "path", "token-file")
            for value in ("", " ")
        ),
        (["--path", "/data", "--path="], "argument --path: empty path"),
    ],
)
def test_invalid_calls_exit_with_2_and_a_reason(arguments, complaint):
    shown = run("--once", *arguments)
    assert shown.returncode == 2 and complaint in shown.stderr and "Traceback" not in shown.stderr


@pytest.mark.parametrize("command", ["node", "report", "serve", "up", "export", "replay"])
def test_every_option_rejects_an_empty_value(command):
    """Runs the installed program; no command's `call` is reached."""
    from goodput.cli import parser

    options = [
        action.option_strings[-1]
        for action in parser()._subparsers._group_actions[0].choices[command]._actions
        if action.option_strings and action.nargs != 0
    ]
    assert options
    for option in options:
        for words in ([option, ""], [f"{option}="]):
            with pytest.raises(SystemExit) as ended:
                parser().parse_args([command, *words, *(["file"] if command in ("export", "replay") else [])])
            assert ended.value.code == 2, (command, words)


def test_script_arguments_may_be_empty():
    from goodput.cli import parser

    assert parser().parse_args(["run", "train.py", "", "--name", ""]).arguments == ["", "--name", ""]


INTERRUPTED = """
import os, signal, sys, threading
sys.argv[0] = "goodput"
from goodput import cli
when, arguments = sys.argv[1], sys.argv[2:]

class Importing:
    '''Sends the signal in an import, where an exception does not come through.'''
    def find_spec(self, name, path=None, target=None):
        if name == when:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                print("swallowed", file=sys.stderr)
sys.meta_path.insert(0, Importing())
sys.modules.pop(when, None)
if when == "call":
    from goodput.cli import node
    node.call = lambda arguments: os.kill(os.getpid(), signal.SIGINT) or threading.Event().wait(5)
sys.exit(cli.main(arguments))
"""


@pytest.mark.parametrize("when", ["goodput.cli.node", "goodput_exporters.agent", "msgspec", "call"])
def test_interrupt_during_start_exits_quietly(tmp_path, when):
    environ = command()[1]
    call = [sys.executable, "-c", INTERRUPTED, when, "node", "--once", "--directory", str(tmp_path)]
    shown = subprocess.run(call, env=environ, capture_output=True, text=True, timeout=300)
    assert (shown.returncode, shown.stdout, shown.stderr) == (130, "", "")


def test_aggregator_variable_invalid_or_empty():
    assert run("--once", GOODPUT_AGGREGATOR="nonsense").returncode == 2
    assert run("--once", "--directory", "/nowhere", GOODPUT_AGGREGATOR="").returncode == 0


def test_missing_packages_give_install_advice(tmp_path):
    (tmp_path / "msgspec.py").write_text("raise ImportError('No module named msgspec')\n")
    shown = run("--once", PYTHONPATH=f"{tmp_path}{os.pathsep}{PYTHONPATH}")
    assert shown.returncode == 1 and "pip install 'goodput-telemetry[node]'" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_address_in_use_exits_with_1(tmp_path, start):
    first = start("--directory", str(tmp_path))
    address = url_of(first).split("/")[2]
    second = run("--directory", str(tmp_path / "other"), "--listen", address)
    assert second.returncode == 1 and f"cannot listen on {address}" in second.stderr


def test_second_agent_on_the_directory_exits(tmp_path, start):
    first = start("--directory", str(tmp_path))
    url_of(first)
    second = run("--directory", str(tmp_path), "--listen", "127.0.0.1:0")
    assert second.returncode == 1 and f"another agent already uses {tmp_path}" in second.stderr
    first.kill()
    first.wait()
    third = start("--directory", str(tmp_path))  # A lock dies with its holder.
    url_of(third)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serves_pushes_and_stops_in_time(tmp_path, start, number):
    aggregator, rank = Aggregator(), Process(tmp_path)
    try:
        token = tmp_path / "token"
        token.write_text("secret\n")
        token.chmod(0o600)
        arguments = ("--interval", "0.05", "--push-interval", "3600", "--token-file", str(token))
        process = start("--directory", str(tmp_path), *arguments, GOODPUT_AGGREGATOR=aggregator.url)
        url = url_of(process)
        rank.do("step", {"forward": MS})
        text = 'goodput_steps_total{rank="0",run="r1"} 1.0'
        wait_until(lambda: text in httpx.get(url, trust_env=False).text)
        rank.do("step", {"forward": MS})
        process.send_signal(number)
        assert process.wait(60) == 0
        assert process.stderr.read() == ""
        assert aggregator.rows() == {("r1", 0, 1): [1, 2]}
        assert aggregator.requests[0][1]["Authorization"] == "Bearer secret"
    finally:
        rank.kill()
        aggregator.close()


def test_stops_in_time_when_the_aggregator_hangs(tmp_path, start):
    aggregator, rank = Aggregator(), Process(tmp_path)
    release = threading.Event()
    aggregator.answer = lambda *_: release.wait(120) and None
    try:
        process = start(
            "--directory", str(tmp_path), "--aggregator", aggregator.url, "--push-interval", "0.05"
        )
        url_of(process)
        rank.do("step", {"forward": MS})
        wait_until(lambda: aggregator.requests)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, "the answer takes two minutes"
    finally:
        release.set()
        rank.kill()
        aggregator.close()
