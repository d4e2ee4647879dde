"""Faults of a live run's processes and network: whatever was away, the account has every step in the end."""

import os
import shutil
import signal
import subprocess
from functools import partial

import pytest
from support.integration.stack_under_faults import StackUnderFaults
from support.servers.tokens import add

AGGREGATOR_SIDE, NODE_SIDE = "10.213.97.1", "10.213.97.2"
LONG_STEPS = 400  # over the 10 s that a push may take
LINK = f"goodput{os.getpid() % 10_000}"


@pytest.mark.faults
def test_killed_and_frozen_processes_lose_nothing(tmp_path):
    with StackUnderFaults(tmp_path) as stack:
        for name, process, start_again in (
            ("aggregator", stack.aggregator, stack.serve),
            ("agent", stack.agent, stack.node),
        ):
            freeze, thaw = (partial(process.send_signal, one) for one in (signal.SIGSTOP, signal.SIGCONT))
            stack.under(f"SIGSTOP of the {name}", freeze, thaw)
            stack.under(f"SIGKILL of the {name}", partial(kill, process), start_again)
        stack.finish()


def kill(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()


@pytest.fixture
def link():
    """A pair of interfaces, one of them in a network namespace of this name."""
    if os.geteuid() != 0 or not shutil.which("ip") or subprocess.run(["ip", "netns", "add", LINK]).returncode:
        pytest.skip("network namespaces need root and iproute2")
    try:
        run(f"ip link add {LINK}a type veth peer name {LINK}b netns {LINK}")
        run(f"ip addr add {AGGREGATOR_SIDE}/30 dev {LINK}a")
        run(f"ip link set {LINK}a up")
        run(f"ip -n {LINK} addr add {NODE_SIDE}/30 dev {LINK}b")
        run(f"ip -n {LINK} link set {LINK}b up")
        run(f"ip -n {LINK} link set lo up")
        yield LINK
    finally:
        subprocess.run(["ip", "link", "del", f"{LINK}a"], check=False)
        subprocess.run(["ip", "netns", "del", LINK], check=True)


def run(command: str) -> None:
    subprocess.run(command.split(), check=True)


@pytest.mark.faults
@pytest.mark.slow_faults
def test_cut_half_open_and_slow_networks_lose_nothing(link, tmp_path):
    """Half-open: what the agent sends arrives, and no answer does. Slow: 64 kbit a second."""
    tokens = tuple(add(tmp_path / "tokens.json", name=scope, scope=scope) for scope in ("ingest", "read"))
    enter = ("ip", "netns", "exec", link)
    with StackUnderFaults(tmp_path, AGGREGATOR_SIDE, tokens, enter) as stack:
        for fault, begin, end in (
            ("network cut", f"ip link set {link}a down", f"ip link set {link}a up"),
            (
                "network half-open",
                f"ip route add blackhole {NODE_SIDE}",
                f"ip route del blackhole {NODE_SIDE}",
            ),
            (
                "network slow",
                f"tc qdisc add dev {link}a root tbf rate 64kbit burst 2kb latency 2s",
                f"tc qdisc del dev {link}a root",
            ),
        ):
            stack.under(fault, partial(run, begin), partial(run, end), LONG_STEPS)
        stack.finish()
