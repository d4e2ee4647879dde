"""Point each alert at the panel that shows it, by the panel's title.

Updates the `dashboard_url` that follows a `runbook_url` in the rule files of deploy/prometheus and their tests: the
board and the number of the panel, which changes with its place. The variables in an address are kept.

    python -m dashboards.alert_links            # write
    python -m dashboards.alert_links --check    # exit 1 and name the files that differ
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from dashboards.generate import GENERATED
from dashboards.rows import panels_of

RULES = Path(__file__).parents[1] / "deploy" / "prometheus"
# In rules it follows Grafana's address, from an external label of Prometheus; tests set no such label.
_LINK = re.compile(
    r"(runbooks/(\w+)\.md(?:#(\w+))?\n +dashboard_url: (?:'\{\{ \$externalLabels\.grafana \}\})?)/d/[\w-]+"
    r"(?:\?(\S(?:.*[^\s'])?))?(?='?\n)"
)

# Without the label the board keeps its default, all clusters.
_CLUSTER = "{{ if $labels.cluster }}&var-cluster={{ $labels.cluster | urlquery }}{{ end }}"

# By board and title of the panel. An alert of several problems has a link for each, named Alert#problem.
LINKS: dict[tuple[str, str], tuple[str, ...]] = {
    ("goodput-run", "Where the GPU time goes"): (
        "UtilisationDrop",
        "ObjectiveBurn#fast",
        "ObjectiveBurn#slow",
    ),
    ("goodput-run", "MFU, goodput and idle causes"): ("LoaderStarved", "MfuDrop"),
    ("goodput-run", "Time since the last step"): ("RunStalled",),
    ("goodput-run", "Status, ranks and telemetry coverage"): ("TelemetryMissing#ranks", "RunFailed"),
    ("goodput-run", "Own step time by rank, over the median"): ("StragglerRank",),
    ("goodput-run", "Work lost per restart"): ("LostWork",),
    ("goodput-run", "Other counts of the run"): ("RestartLoop",),
    ("goodput-run", "Checkpoints"): ("CheckpointLate#slow", "CheckpointLate#old"),
    ("goodput-fleet", "Goodput and MFU"): ("ObjectiveBurn#cluster",),
    ("goodput-stack", "Trainers: measurement overhead"): ("OverBudget#sdk",),
    ("goodput-stack", "Availability of the stack"): (
        *("AgentDown", "AggregatorDown", "CollectorDown#failing", "TelemetryMissing#unserved"),
    ),
    ("goodput-stack", "Aggregator state"): (
        "Credentials#token",
        "Credentials#certificate",
        "ClocksContradict#skew",
    ),
    ("goodput-stack", "Aggregator: errors per minute"): (
        *(
            "LedgerFailing",
            "ReportsRefused",
            "ClocksContradict#contradict",
            "AuthFailures",
            "Credentials#reload",
        ),
    ),
    ("goodput-stack", "Agents: pushes and samples"): ("PushFailing#failing",),
    ("goodput-stack", "Aggregator: requests and reports"): ("TelemetryMissing#all",),
    ("goodput-stack", "Aggregator: request duration"): ("TelemetryMissing#late",),
    ("goodput-stack", "Agents: errors per minute"): ("PushFailing#dropping", "GpuDriverDown#restarting"),
    ("goodput-stack", "Agents: backlog and stuck drivers"): ("GpuDriverDown#hung",),
    ("goodput-stack", "Agents: cores and memory"): ("OverBudget#agent",),
    ("goodput-node", "GPUs of the chosen nodes"): (
        *("GpuLost#lost", "GpuLost#not_seen", "GpuDriverDown#down"),
    ),
    ("goodput-node", "GPU errors: memory, XIDs, PCIe"): (
        *("GpuXid#other", "GpuXid#application", "GpuXid#critical", "GpuMemory#uncorrectable"),
        *("GpuMemory#no_spare_rows", "GpuMemory#reset_pending", "GpuPcieDegraded"),
        "GpuNeedsRecovery",
    ),
    ("goodput-node", "Activity of the GPUs"): ("CollectorDown#false_zero",),
    ("goodput-node", "Health events of the last hour"): ("LinkDown#network",),
    ("goodput-node", "Clock throttling by reason"): ("GpuThrottled",),
    ("goodput-node", "Network utilisation: the busiest links"): (
        *("NetworkCongestion#saturated", "LinkDegraded#rate_or_errors", "LinkDown#infiniband"),
    ),
    ("goodput-node", "Network errors per second"): (
        *("LinkDegraded#flapping", "NetworkCongestion#retransmits", "NetworkCongestion#congestion"),
    ),
    ("goodput-host", "Disks"): ("HostDegraded#disk",),
    ("goodput-host", "File systems"): ("FilesystemNearlyFull", "FilesystemNotAnswering"),
    ("goodput-host", "Memory errors, throttling, packets"): (
        *("HostDegraded#memory", "HostDegraded#heat", "NetworkCongestion#backlog"),
    ),
    ("goodput-host", "Memory modules with errors, NVMe"): ("HostDegraded#storage",),
    ("goodput-host", "Clock, busiest processor"): ("ClocksContradict#unsynchronised",),
    ("goodput-node", "Pressure, disks, file systems"): ("HostDegraded#pressure",),
}


def panels(generated: Path = GENERATED) -> dict[str, tuple[str, dict]]:
    """The board's uid and the panel of each alert and problem; KeyError for a title that no panel has."""
    boards = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in generated.glob("*.json")}
    found = {}
    for (uid, title), alerts in LINKS.items():
        by_title = {panel["title"]: panel for panel in panels_of(boards[uid])}
        if title not in by_title:
            raise KeyError(f"{uid} has no panel {title!r}; it has {sorted(by_title)}")
        found |= {f"Goodput{name}": (uid, by_title[title]) for name in alerts}
    return found


def linked(text: str, found: dict[str, tuple[str, dict]]) -> str:
    """The text of a rule file or of a test with current links."""

    def replaced(match: re.Match) -> str:
        name = f"{match[2]}#{match[3]}" if match[3] else match[2]
        if name not in found:
            return match[0]
        uid, panel = found[name]
        own = re.sub(r"&?viewPanel=\d+", "", (match[4] or "").replace(_CLUSTER, ""))
        cluster = _CLUSTER if match[1].endswith("}}") else ""
        return f"{match[1]}/d/{uid}?{own}{'&' if own else ''}viewPanel={panel['id']}{cluster}"

    return _LINK.sub(replaced, text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m dashboards.alert_links", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not current")
    check, stale = parser.parse_args(arguments).check, 0
    found = panels()
    for path in sorted([*RULES.glob("alerts_*.yml"), *RULES.glob("tests/*.yml")]):
        before = path.read_text(encoding="utf-8")
        after = linked(before, found)
        if after == before:
            continue
        stale += 1
        if check:
            print(f"{path.name} is not current; run: python -m dashboards.alert_links", file=sys.stderr)
        else:
            path.write_text(after, encoding="utf-8")
            print(path.relative_to(RULES.parents[1]))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
