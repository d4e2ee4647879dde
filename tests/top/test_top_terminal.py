"""`goodput top` in a real terminal (tmux): over real rank pages, and over an aggregator with pushed reports."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from msgspec.structs import replace
from support.account.account_history import Process
from support.aggregator.page_server import hung_run
from support.aggregator.reports import rank_report
from support.aggregator.serve_process import push, serving
from support.paths import SUPPORT
from support.servers.servers import free_ports
from support.top.tmux import Terminal, require_tmux

from goodput.aggregator.api.app import create_app
from goodput.wire.collectives import CallRow, Collectives, GroupRow

TOP = [sys.executable, "-m", "goodput", "top", "--interval", "0.2"]
COLOUR = "\x1b\\[(3[0-7]|9[0-7])m"


@pytest.fixture
def training(tmp_path):
    """A folder in which three ranks train; rank 1's loader is slow, and `stuck` in it holds rank 1 in backward."""
    require_tmux()
    folder, pages = tmp_path / "training", tmp_path / "pages"
    folder.mkdir()
    command = [sys.executable, str(SUPPORT / "top/rank.py"), str(folder), "100000"]
    own = {"GOODPUT_DIR": str(pages), "GOODPUT_RUN": "my-run", "GOODPUT_ATTEMPT": "1", "WORLD_SIZE": "3"}
    ranks = [subprocess.Popen(command, env={**os.environ, **own, "RANK": str(r)}) for r in range(3)]
    yield folder, pages
    (folder / "stuck").unlink(missing_ok=True)
    (folder / "stop").touch()
    for one in ranks:
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.wait(20)
        one.kill()
        one.wait()


def test_real_pages_are_followed_by_keys(training, tmp_path):
    """The run opens by itself; filter, rank, stack, back, the list, resizing, and quitting."""
    folder, pages = training
    command = [*TOP, "--directory", str(pages), "--agent", f"http://127.0.0.1:{free_ports(1)[0]}"]
    # Left by a program that used readline, or exported by a shell: the size that a terminal had once.
    with Terminal(command, tmp_path, COLUMNS="70", LINES="20") as terminal:
        screen = terminal.wait_for("slow: loader", "of 100000 steps", "ETA", "steps/s", "step time ")
        assert all(len(line) <= 80 for line in screen.split("\n")) and re.search(COLOUR, terminal.styled)
        assert screen.index("slow: loader") < screen.index("\n      0 ")
        (folder / "stuck").touch()
        terminal.wait_for("backward 1")
        terminal.keys("/", "1", "Enter")
        terminal.wait_for("filter: 1", without="\n      0 ")
        terminal.keys("Enter")
        terminal.wait_for("rank 1 on ", "in backward for", "its time ", "productive")
        terminal.keys("t")
        terminal.wait_for("wait_while (rank.py:")
        (folder / "stuck").unlink()
        terminal.keys("Escape")
        terminal.wait_for("filter: 1")
        terminal.keys("Escape")
        terminal.wait_for("\n      0 ")
        terminal.keys("Escape")
        terminal.wait_for("LARGEST LOSS", "▶ my-run")
        terminal.resize(140, 40)
        screen = terminal.wait_for("▶ my-run" + " " * 60)
        assert len(screen.split("\n")) >= 40
        terminal.keys("q")
        terminal.wait_for("exit=0")
        assert_restored(terminal, tmp_path)


def assert_restored(terminal, folder):
    terminal.wait_for("exit=")
    assert (terminal.value("alternate_on"), terminal.value("cursor_flag")) == ("0", "1")
    end = time.monotonic() + 20
    while not (folder / "after").exists() or not (folder / "after").read_text():
        assert time.monotonic() < end
        time.sleep(0.02)
    before, after = ((folder / name).read_text().partition("\n")[2] for name in ("before", "after"))
    assert after == before  # But for the first line, which has the size.


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_restore_the_terminal(tmp_path, number, status):
    with Terminal([*TOP, "--directory", str(tmp_path / "none")], tmp_path) as terminal:
        terminal.wait_for("no run yet", "q quit")
        assert terminal.value("alternate_on") == "1"
        os.kill(terminal.child(), number)
        terminal.wait_for(f"exit={status}", without="q quit")
        assert_restored(terminal, tmp_path)


def test_terminal_without_utf8_or_colour(tmp_path):
    """Letters stand for states, and no character is beyond ASCII."""
    app = create_app(f"sqlite:///{tmp_path}/ledger.db")
    with serving(app) as client:
        push(client, *reports(time.time()))
        command = [*TOP, "--url", str(client.base_url), "r1"]
        with Terminal(command, tmp_path, LANG="C", LC_ALL="C", NO_COLOR="1") as terminal:
            screen = terminal.wait_for("= productive", "L loader", " - http")
            assert screen.isascii() and not re.search(COLOUR, terminal.styled)


def reports(now: float, extra: int = 0):
    """Four ranks on two hosts, 20 steps; rank 2's loader is slow."""
    ranks = []
    for rank in range(4):
        own = {"world_size": 4, "host": f"n{rank // 2}", "total_steps": 100}
        one = Process(rank, 1, now - 30, **own).between(none=1)
        loader = 0.4 if rank == 2 else 0.1
        one.steps(20 + extra, loader=loader, forward=0.4, communication=0.6 - loader)
        ranks.append(rank_report(one, **own))
    return ranks


def test_cluster_is_read_from_the_aggregator(tmp_path):
    """Runs, hosts, the slow rank first; a server that has gone is reported and what was read stays."""
    app = create_app(f"sqlite:///{tmp_path}/ledger.db")
    with contextlib.ExitStack() as stack:
        with serving(app) as client:
            began = time.time()
            push(client, *reports(began))
            terminal = stack.enter_context(Terminal([*TOP, "--url", str(client.base_url)], tmp_path, 100, 30))
            screen = terminal.wait_for("r1", "4 ranks on 2 hosts", "20 of 100 steps", "slow: loader", "n1")
            lines = [line for line in screen.split("\n") if line.strip().startswith(("▶", "0 ", "1 ", "3 "))]
            assert lines[0].split()[1:3] == ["2", "n1"]
            push(client, *reports(began, extra=4))
            terminal.wait_for("24 of 100 steps")
        terminal.wait_for("shown: the last that was read", "24 of 100 steps")
        terminal.keys("Enter")
        terminal.wait_for("rank 2 on n1", "run goodput top on n1")
        terminal.keys("q")
        terminal.wait_for("exit=0")


def waiting_in(report, sequence: int):
    """The report of a rank in communication whose last call is all-reduce `sequence`; the GPU runs at 37 %."""
    began_ns = report.live.now_ns - 190 * 10**9
    call = CallRow(sequence, "all_reduce", "float32", 4096, -1, began_ns, 0)
    group = GroupRow("0", "default_pg", "gloo", 4, ((0, 1, 4),), sequence, (call,))
    hardware = {"since_ns": 1, "busy_ppm": 370_000, "power_mw": 412_400}
    live = replace(report.live, phase="communication", collectives=Collectives((group,)), hardware=hardware)
    return replace(report, live=live)


def test_cluster_shows_gpus_and_the_call_that_hangs(tmp_path):
    """Rank 2 has not come to the all-reduce in which the others wait; on a screen of 80 columns and 24 lines."""
    app = create_app(f"sqlite:///{tmp_path}/ledger.db")
    with serving(app) as client:
        reports = hung_run("hung", time.time_ns(), 200)
        push(client, *(waiting_in(one, 30 if one.identity.rank == 2 else 31) for one in reports))
        with Terminal([*TOP, "--url", str(client.base_url)], tmp_path) as terminal:
            screen = terminal.wait_for("HANG", "all_reduce 31 of default_pg", "hangs: not in")
            lines = screen.split("\n")
            assert len(lines) <= 25 and all(len(line) <= 80 for line in lines)
            assert re.search(
                r"3 of 4 ranks have entered it, .* ago; missing: rank 2", " ".join(screen.split())
            )
            first = next(line for line in lines if line.startswith("▶"))
            assert first.split()[1] == "2" and " 37 %  412 W" in first
            assert sum(" 37 %  412 W" in line for line in lines) == 4
            terminal.keys("Enter")
            screen = terminal.wait_for("rank 2 on", "has not come to all_reduce 31 of default_pg", "GPU 37 %")
            assert "in which 3 ranks wait for" in " ".join(screen.split())
            terminal.keys("Escape")
            terminal.wait_for("HANG")
            terminal.keys("/", "3", "Enter", "Enter")
            terminal.wait_for("rank 3 on", "waits in all_reduce 31 of default_pg")
            terminal.keys("q")
            terminal.wait_for("exit=0")
