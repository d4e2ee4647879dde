"""The whole stack on real servers: live ranks, agent, aggregator, Prometheus, Alertmanager.

Every expression of the dashboards and of the rules is run against real Prometheus and must return samples, but where
it reads a series that two ranks without a GPU do not have, or one that counts what does not happen here; the alerts
are driven from the live run to a real Alertmanager. The rules are the shipped ones with shorter windows. The tests
share one run and take it through its troubles in order.
"""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from support.paths import SUPPORT
from support.servers import servers
from support.servers.child_processes import ChildProcesses

WINDOWS = {"1m": "5s", "2m": "5s", "5m": "10s", "15m": "12s", "30m": "12s", "1h": "40s", "6h": "40s"}
RUN = "live/run 1"
RANKS = 2


class Stack(ChildProcesses):
    """An aggregator, an agent, and two ranks for each attempt."""

    def __init__(self, folder: Path):
        (folder / "pages").mkdir()
        super().__init__(folder, {**os.environ, "GOODPUT_DIR": str(folder / "pages"), "GOODPUT_RUN": RUN})

    def begin(self) -> None:
        ledger = f"sqlite:///{self.folder / 'ledger.db'}"
        self.goodput("serve", f"--listen 127.0.0.1:0 --stall 4 --ledger {ledger}")
        self.aggregator = self.address("serve")
        options = f"--listen 127.0.0.1:0 --interval 0.2 --push-interval 0.5 --aggregator {self.aggregator}"
        self.node = self.goodput("node", options)
        self.agent = self.address("node")

    def train(self, attempt: int) -> list[subprocess.Popen]:
        script = str(SUPPORT / "integration" / "live_rank.py")
        return [
            self.start(
                f"rank-{attempt}-{rank}",
                *(script, str(self.folder)),
                RANK=str(rank),
                WORLD_SIZE=str(RANKS),
                GOODPUT_ATTEMPT=str(attempt),
            )
            for rank in range(RANKS)
        ]


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """(stack, ranks, prometheus, webhook) over a run that was killed once and goes on."""
    servers.require("prometheus", "prometheus-alertmanager")
    folder = tmp_path_factory.mktemp("stack")
    stack = Stack(folder)
    try:
        stack.begin()
        with servers.Webhook() as webhook, servers.Alertmanager(folder, webhook.url) as alertmanager:
            targets = {
                "goodput-node": [stack.agent.removeprefix("http://")],
                "goodput-aggregator": [stack.aggregator.removeprefix("http://")],
            }
            config = servers.render(
                *(folder, targets),
                alertmanagers=[alertmanager.address],
                windows=WINDOWS,
                hold="1s",
                substitute={"600 * group": "1 * group"},  # The age from which a run has alerts.
            )
            with servers.Prometheus(folder, config) as prometheus:
                first = stack.train(1)
                servers.wait_until((folder / "checkpoint").exists, 60, "a checkpoint")
                first[1].kill()
                first[0].wait(120)
                yield stack, stack.train(2), prometheus, webhook
    finally:
        stack.end()


def expressions(kind: str) -> list[servers.Expression]:
    everything = servers.expressions(run=RUN, interval="5s")
    found = [e for e in everything if e.kind == kind and e.group not in servers.HARDWARE]
    assert found
    return [e._replace(text=servers.shorten(e.text, WINDOWS)) for e in found]


# Series that are here, but of which nothing has the labels or values that a panel asks for, each with the reason.
QUIET = {
    "goodput_phase_seconds_total": "there is no device, so no device's clock",
    "run_phase_clock:phase_seconds:rate_1m": "the same, merged",
    "goodput_hang_seconds": "nothing hangs yet",
    "goodput_straggler_culprit_slowness_ratio": "neither rank is slow yet, though one may seem so for a moment",
    "goodput_aggregator_requests_total": "no request fails",
    "goodput_aggregator_requests_refused_total": "none is refused",
    "goodput_aggregator_auth_failures_total": "no token is required",
    "goodput_aggregator_audit_dropped_total": "few lines are logged",
    "goodput_aggregator_rank_rejections_total": "no rank is rejected",
    "goodput_aggregator_ledger_errors_total": "the ledger writes",
    "goodput_aggregator_ledger_refused_rows_total": "the ledger takes every value",
    "goodput_aggregator_clamped_total": "the clocks agree",
    "goodput_aggregator_health_dropped_total": "nothing happens to the hardware",
    "goodput_health_events_total": "the same",
    "goodput_node_push_failures_total": "every push is taken",
    "goodput_node_collector_errors_total": "no collector fails",
    "goodput_node_rows_thinned_total": "the aggregator is there",
    "goodput_node_events_dropped_total": "the same",
    "goodput_node_reports_refused_total": "the same",
    "goodput_health_events_dropped_total": "nothing happens to the hardware",
    "goodput_node_token_reload_errors_total": "there is no token file",
    "goodput_node_reload_failing": "the same",
    "goodput_aggregator_reload_failing": "the same",
    "goodput_node_page_errors_total": "every page can be read",
    "goodput_node_page_directory_problem": "no other user may write to the folders of pages",
    "goodput_network_carrier_changes_total": "no link goes down",
    "goodput_sdk_dropped_total": "nothing is dropped",
    "goodput_sdk_unmeasured_steps_total": "every step is measured",
    "goodput_network_bytes_total": "loopback has no line rate",
}


def test_every_dashboard_and_rule_expression_returns_samples(live):
    _, _, prometheus, _ = live
    prometheus.wait_for('goodput_restarts == 1 and on (run) goodput_ranks{kind="alive"} == 2', 30)
    for expression in expressions("record"):
        # Every node is well, and the run is old and large enough for alerts.
        if expression.name not in ("node_kind:open_health:count", "run:no_alert:bool"):
            prometheus.wait_for(expression.text, 30)
    present = {
        sample.labels["__name__"] for sample in prometheus.wait_for('count by (__name__) ({job!=""})', 30)
    }
    present |= {
        one.name for one in servers.expressions() if one.kind == "record" and prometheus.query(one.name)
    }
    panels = [e for e in servers.expressions(run=RUN, interval="5s") if e.kind == "panel"]
    here = [e for e in panels if servers.series_of(e.text) <= present - set(QUIET)]
    assert len(here) > 140
    # There is no GPU, and the ranks record no collectives.
    absent = {"goodput-gpu", "goodput-communication"}
    assert {e.group for e in here} == {e.group for e in panels} - absent, "something of every other board"
    for expression in here:
        prometheus.wait_for(servers.shorten(expression.text, WINDOWS), 30)
    broken = [rule for rule in prometheus.rules() if rule["health"] != "ok"]
    assert broken == []
    assert {target["health"] for target in prometheus.targets()} == {"up"}


def test_the_shares_of_the_account_close_in_prometheus(live):
    _, _, prometheus, _ = live
    share = "sum(run:goodput:ratio_5m) + sum(run:idle:share_5m)"
    assert prometheus.wait_for(share, 10)[0].value == pytest.approx(1, abs=1e-9)


def test_utilisation_drop_reaches_alertmanager_and_resolves(live):
    stack, _, prometheus, webhook = live
    (alert,) = [e for e in expressions("alert") if e.name == "GoodputUtilisationDrop"]
    # The level is learned first: without a while of good work there is nothing to fall from.
    prometheus.wait_for(f'run:steady_goodput:ratio_5m{{run="{RUN}"}} > 0.4', 40)
    assert prometheus.query(alert.text) == []
    (stack.folder / "slow").touch()
    fired = webhook.wait_for("GoodputUtilisationDrop", 60, run=RUN)
    assert "useful work" in fired["annotations"]["summary"]
    prometheus.wait_for(alert.text, 30)
    (stack.folder / "slow").unlink()
    webhook.wait_for("GoodputUtilisationDrop", 90, status="resolved", run=RUN)


def test_a_run_that_hangs_is_reported_as_stalled(live):
    _, ranks, prometheus, webhook = live
    # Two ranks are too few to wake someone.
    _, alert = [e for e in expressions("alert") if e.name == "GoodputRunStalled"]
    prometheus.wait_for('goodput_restarts == 1 and on (run) goodput_ranks{kind="alive"} == 2', 30)
    prometheus.wait_for("min(rank:steps:rate_1m) > 0", 30)
    # Rank 1 first: rank 0 then waits for it. Stopped in a checkpoint, rank 0 would be in a planned pause.
    ranks[1].send_signal(signal.SIGSTOP)
    try:
        prometheus.wait_for("goodput_progress_age_seconds > 2", 30)
        ranks[0].send_signal(signal.SIGSTOP)
        try:
            webhook.wait_for("GoodputRunStalled", 60, run=RUN)
        except AssertionError as error:
            for name in sorted(servers.series_of(alert.text)):
                error.add_note(f"{name}: {prometheus.query(name)}")
            raise
        prometheus.wait_for(alert.text, 30)
    finally:
        for rank in ranks:
            rank.send_signal(signal.SIGCONT)
    webhook.wait_for("GoodputRunStalled", 60, status="resolved", run=RUN)


def test_an_agent_that_is_gone_is_reported(live):
    stack, _, prometheus, webhook = live
    alert = next(e for e in expressions("alert") if e.name == "GoodputAgentDown")
    stack.node.kill()
    webhook.wait_for("GoodputAgentDown", 60, instance=stack.agent.removeprefix("http://"))
    prometheus.wait_for(alert.text, 30)
