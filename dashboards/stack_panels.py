"""The panels of the board of the stack itself (stack.py): aggregator first, then agents, then trainers.

In: series of goodput.metrics, and recording rules. Out: PANELS, functions that build one each. Rate, errors and duration
of each are beside each other (the RED method of Tom Wilkie).
"""

from __future__ import annotations

from dashboards.frame import address
from dashboards.panels import (
    GREEN,
    RED,
    YELLOW,
    change,
    lasting,
    lead,
    lines,
    numbers,
    paint,
    query,
)
from dashboards.stack_trainers import RATE, overhead, rate_of, thinned, worst
from dashboards.words import COVERAGE_STEPS, STATE_COLOURS

NODE = 'instance=~"$instance"'
NO_AGGREGATOR = "no aggregator is scraped"
BAD = 'code=~"4..|5.."'
NO_AGENT = "no node agent is scraped"


# -- What there is


def _up():
    panel = numbers(
        "Who answers",
        "Aggregators and agents that answer Prometheus, as a share of those it knows, how many agents there are, collectors and "
        "drivers' processes that fail, and versions. Below 100 %: nodes that are down or unreachable, see the table. More than "
        "one version: an upgrade that is not finished.",
        place=(0, 0, 12, 4),
        unit="percentunit",
        no_value="Prometheus knows no target",
        queries=[
            query('avg(up{job="goodput-aggregator"})', "aggregators"),
            query('avg(up{job="goodput-node"})', "agents"),
            query("count(goodput_node_info)", "agents that answer"),
            query(f"count(goodput_node_collector_up{{{NODE}}} == 0) or vector(0)", "collectors failing"),
            query(f"count(goodput_driver_up{{{NODE}}} == 0) or vector(0)", "drivers failing"),
            query("count(count by (version) (goodput_node_info or goodput_aggregator_info))", "versions"),
        ],
        steps=COVERAGE_STEPS,
        trend=False,
    )
    change(panel, "agents that answer", unit="none", steps=[(None, "text")])
    change(panel, "versions", unit="none", steps=[(None, GREEN), (2, YELLOW)])
    for name in ("collectors failing", "drivers failing"):
        change(panel, name, unit="none", steps=[(None, GREEN), (1, RED)])
    return panel


def _state():
    panel = numbers(
        "What the aggregator holds",
        "Runs in memory, connections, browsers that are signed in, tokens in force and how long until the next of them expires. "
        "Runs that only grow: names that change at each start. No token: it listens on loopback alone. Soon to expire: make a "
        "new one and give it to the agents before.",
        place=(12, 0, 12, 4),
        unit="none",
        no_value=NO_AGGREGATOR,
        queries=[
            query("max(goodput_aggregator_runs)", "runs"),
            query("sum(goodput_aggregator_connections)", "connections"),
            query("sum(goodput_aggregator_sessions)", "sessions"),
            query("max by (scope) (goodput_aggregator_tokens)", "{{scope}} tokens"),
            query("min(goodput_aggregator_token_expiry_timestamp_seconds) - time()", "next expiry in"),
        ],
        trend=False,
    )
    return change(panel, "next expiry in", unit="s", steps=[(None, RED), (259200, YELLOW), (1209600, GREEN)])


# -- The aggregator: rate, errors, duration


def _requests():
    return lines(
        "Aggregator: what comes in",
        "Requests by route, reports and rows taken in a second; rows that came again are repeats after a lost answer. Reports that "
        "fall to zero: no agent reaches it. Repeats near the new ones: answers are lost or too late; see the duration.",
        place=(0, 4, 8, 8),
        unit="reqps",
        no_value=NO_AGGREGATOR,
        queries=[
            query(f"topk(6, {rate_of('goodput_aggregator_requests_total', 'route')})", "{{route}}"),
            query(rate_of("goodput_aggregator_reports_total", "outcome"), "reports {{outcome}}"),
            query(rate_of("goodput_aggregator_rows_total", "kind"), "rows {{kind}}"),
            query(rate_of("goodput_aggregator_health_events_total"), "health events"),
            query(rate_of("goodput_aggregator_stacks_total", "outcome"), "stacks {{outcome}}"),
        ],
    )


def _refusals():
    def all_of(series: str, by: str) -> str:
        return f"{rate_of(f'goodput_aggregator_{series}_total', by)} * 60 > 0"

    return lines(
        "Aggregator: errors in a minute",
        "What was refused or failed. ledger: nothing is acknowledged until it writes again, so free its disk or database. no right: "
        "a wrong or expired token, see the agent. 5xx: the aggregator's log. refused: a limit was met, by what is named. clamped: "
        "clocks that contradict each other. unusable: 1 while the newest file cannot be used. Zero is normal.",
        place=(8, 4, 8, 8),
        unit="short",
        no_value="no error in this time",
        queries=[
            query(f"{rate_of('goodput_aggregator_requests_total', 'code', BAD)} * 60 > 0", "{{code}}"),
            query(all_of("auth_failures", "reason"), "no right: {{reason}}"),
            query(all_of("requests_refused", "reason"), "refused: {{reason}}"),
            query(all_of("rank_rejections", "reason"), "rank rejected: {{reason}}"),
            query(
                " or ".join(
                    f'label_replace({all_of(f"{what}_errors", "")}, "what", "{what}", "", "")'
                    for what in ("ledger", "token_reload", "tls_reload")
                ),
                "{{what}}",
            ),
            query("max by (file) (goodput_aggregator_reload_failing) > 0", "unusable: {{file}}"),
            query(all_of("clamped", "what"), "clamped: {{what}}"),
            query(all_of("health_dropped", "reason"), "health dropped: {{reason}}"),
        ],
    )


def _durations():
    gathered = f"sum by (le, route) (rate(goodput_aggregator_request_seconds_bucket[{RATE}]))"
    taken = f"({rate_of('goodput_aggregator_reports_total')} > 0)"
    return lines(
        "Aggregator: duration of a request",
        "p99 by route and the median of all, from headers to answer, and the time to take one report. p99 of pushes near the agents' timeout "
        "(they send again): the ledger's disk, or one core for too many ranks. Pages slow alone: long windows of the past.",
        place=(16, 4, 8, 8),
        unit="s",
        no_value="no request in this time",
        queries=[
            query(f"topk(6, histogram_quantile(0.99, {gathered}))", "p99 {{route}}"),
            query(
                f"histogram_quantile(0.5, sum by (le) (rate(goodput_aggregator_request_seconds_bucket[{RATE}])))",
                "p50",
            ),
            query(f"{rate_of('goodput_aggregator_ingest_seconds_total')} / {taken}", "taking a report"),
        ],
        steps=[(None, GREEN), (0.1, YELLOW), (1, RED)],
    )


# -- The agents: rate, errors, duration


def _pushes():
    return lines(
        "Agents: pushes and samples",
        "Reports that agents sent in a second, by outcome; samples of drivers; stacks that were asked for; events of the hardware. "
        "Unreachable: aggregator or network. Rejected: see the errors beside. Samples below one a second for each driver: a "
        "driver that is slow or hangs.",
        place=(0, 12, 8, 8),
        unit="cps",
        no_value=NO_AGENT,
        queries=[
            query(rate_of("goodput_node_pushes_total", "outcome", NODE), "pushes {{outcome}}"),
            query(rate_of("goodput_driver_samples_total", "driver", NODE), "samples of {{driver}}"),
            query(rate_of("goodput_node_stacks_total", "outcome", NODE), "stacks {{outcome}}"),
            query(rate_of("goodput_health_events_total", "", NODE), "health events"),
        ],
    )


def _failures():
    def one(series: str, by: str) -> str:
        return f"{rate_of(series, by, NODE)} * 60 > 0"

    return lines(
        "Agents: errors in a minute",
        "What went wrong in all agents. push: the aggregator did not take it, by reason (unauthorized: the token). page: a rank page "
        "that could not be read. collector, driver: the agent's log says what. rows thinned: the aggregator was away for long; no time is lost. "
        "unusable: agents whose newest file of tokens or certificate is no good. "
        "Zero is normal, but for pages of ranks that just start.",
        place=(8, 12, 8, 8),
        unit="short",
        no_value="no error in this time",
        queries=[
            query(
                " or ".join(
                    f'label_replace({one(series, "reason")}, "reason", "{what}: $1", "reason", "(.*)")'
                    for what, series in {
                        "push": "goodput_node_push_failures_total",
                        "rejected": "goodput_node_push_rejections_total",
                        "page": "goodput_node_page_errors_total",
                        "request": "goodput_node_requests_refused_total",
                    }.items()
                ),
                "{{reason}}",
            ),
            query(one("goodput_node_collector_errors_total", "collector"), "collector {{collector}}"),
            query(one("goodput_driver_problems_total", "driver"), "calls of {{driver}}"),
            query(one("goodput_driver_samples_dropped_total", "driver"), "samples of {{driver}} dropped"),
            query(one("goodput_driver_restarts_total", "driver, reason"), "{{driver}} replaced: {{reason}}"),
            query(one("goodput_node_rows_thinned_total", ""), "rows thinned"),
            query(one("goodput_health_events_dropped_total", ""), "health events dropped"),
            query(one("goodput_node_token_reload_errors_total", ""), "token file"),
            query(
                f"count by (file) (goodput_node_reload_failing{{{NODE}}} > 0)", "agents, unusable: {{file}}"
            ),
        ],
    )


def _scrapes():
    panel = lines(
        "Agents: duration",
        "How long the slowest agents take for a scrape and for a run of a collector, and the age of the oldest samples of drivers and GPUs. "
        "Above the scrape's timeout nothing of that node is seen. A slow collector: a file system or a driver that answers late. "
        "Old samples: the driver hangs.",
        place=(16, 12, 8, 8),
        unit="s",
        no_value=NO_AGENT,
        queries=[
            query(
                lasting(3, f"max by (instance) (goodput_node_scrape_seconds{{{NODE}}})", "instance"),
                "scrape of {{instance}}",
            ),
            query(
                lasting(4, f"max by (collector) (goodput_node_collector_seconds{{{NODE}}})", "collector"),
                "collector {{collector}}",
            ),
            query(
                f"max by (driver) (goodput_driver_sample_age_seconds{{{NODE}}})",
                "oldest sample of {{driver}}",
            ),
            query(f"max(goodput_gpu_sample_age_seconds{{{NODE}}})", "oldest sample of a GPU"),
        ],
        steps=[(None, GREEN), (4, RED)],
    )
    to_node = address("goodput-node", {"instance": "label:instance"})
    return lead(panel, "/^scrape of/", "Open the node", to_node)


# -- What they cost, and what waits


def _aggregator_cost():
    panel = lines(
        "Aggregator: cores and memory",
        "What each aggregator takes. A whole core for long: it cannot keep up; give runs to a second one. Memory that only grows: runs that do "
        "not end; see the runs it holds.",
        place=(0, 20, 6, 8),
        unit="suffix: cores",
        no_value=NO_AGGREGATOR,
        queries=[
            query(
                f"sum by (instance) (rate(goodput_aggregator_cpu_seconds_total[{RATE}]))", "CPU {{instance}}"
            ),
            query("sum(goodput_aggregator_memory_bytes)", "memory"),
        ],
        steps=[(None, GREEN), (1, RED)],
    )
    return change(panel, "memory", unit="bytes", axis_right=True)


def _agent_cost():
    panel = lines(
        "Agents: cores and memory",
        "The three agents that take most of a core, with their drivers' processes, the median of all, and the largest memory of an agent and of a "
        "driver's process (right). Above 1 % of a core: many GPUs or links sampled too often, or a driver that is slow. "
        "Memory that grows: the agent replaces such a process itself.",
        place=(6, 20, 6, 8),
        unit="percentunit",
        no_value=NO_AGENT,
        queries=[
            query(lasting(3, f"node:agent_cpu:ratio_5m{{{NODE}}}", "instance"), "{{instance}}"),
            query(f"quantile(0.5, node:agent_cpu:ratio_5m{{{NODE}}})", "median"),
            query(f"max(goodput_node_memory_bytes{{{NODE}}})", "memory of an agent"),
            query(f"max(goodput_driver_memory_bytes{{{NODE}}})", "memory of a driver"),
        ],
        steps=[(None, GREEN), (0.05, YELLOW)],
    )
    for name in ("memory of an agent", "memory of a driver"):
        change(panel, name, unit="bytes", axis_right=True)
    return panel


def _backlog():
    return lines(
        "Agents: what waits",
        "Step rows and health events that the aggregator has not acknowledged, all agents together and the fullest one; drivers' processes that "
        "cannot be ended. Growing: pushes fail, see the errors. Falling in steps: it has come back. The backlog is bounded: what "
        "does not fit is thinned, no time is lost.",
        place=(12, 20, 6, 8),
        unit="short",
        no_value=NO_AGENT,
        queries=[
            query(f"sum(goodput_node_backlog_rows{{{NODE}}})", "rows"),
            query(f"max(goodput_node_backlog_rows{{{NODE}}})", "rows, fullest agent"),
            query(f"sum(goodput_health_events_waiting{{{NODE}}})", "health events"),
            query(f"sum(goodput_driver_processes_unkillable{{{NODE}}})", "processes that cannot be ended"),
        ],
    )


def _pages():
    panel = lines(
        "Rank pages",
        "Pages of ranks on all nodes: of living processes, of dead ones, and rejected; ranks whose process was not found on its node (other PID namespace). "
        "Rejected: another version of goodput, or a foreign file in the folder. Living below the ranks of your runs: ranks that do not load "
        "goodput, or write into another folder than the agent reads.",
        place=(18, 20, 6, 8),
        unit="short",
        no_value=NO_AGENT,
        queries=[
            query(f"sum by (state) (goodput_node_pages{{{NODE}}})", "{{state}}"),
            query(f"count(goodput_rank_process_known{{{NODE}}} == 0) or vector(0)", "process not found"),
        ],
    )
    return paint(panel, {"rejected": RED, "dead": STATE_COLOURS["down"], "live": STATE_COLOURS["productive"]})


PANELS = (
    *(_up, _state),
    *(_requests, _refusals, _durations),
    *(_pushes, _failures, _scrapes),
    *(_aggregator_cost, _agent_cost, _backlog, _pages),
    *(overhead, thinned, worst),
)
