"""goodput / The stack itself: whether what watches the runs is well, and what it costs."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as builders

from dashboards.board_builder import address, agent_variable, build_board, optional_run_variable
from dashboards.panels import (
    GREEN,
    RED,
    YELLOW,
    Panels,
    colour_series,
    column,
    lines,
    link_to,
    numbers,
    override,
    query,
    rows,
    series_options,
    top_over_range,
)
from dashboards.states import COVERAGE_STEPS, STATE_COLOURS

PANELS = Panels()

RUN = 'run=~"$run"'
RATE = "$__rate_interval"


def rate_of(series: str, by: str = "", selector: str = "") -> str:
    braces = f"{{{selector}}}" if selector else ""
    return f"sum{f' by ({by}) ' if by else ''}(rate({series}{braces}[{RATE}]))"


# -- The trainers


@PANELS.add
def _sdk_cost():
    panel = lines(
        "Trainers: measurement overhead",
        "Time of the SDK over the time of its rank: median and worst of each run, the three worst runs, against the smallest budget. Above it: the "
        "SDK measures fewer steps by phases, beside. Stays above: too many phases of one's own in a step, or a deep look too often.",
        place=(0, 28, 8, 8),
        unit="percentunit",
        no_value="no rank is measured",
        queries=[
            query(
                top_over_range(3, f"max by (run) (rank:sdk_cost:ratio_15m{{{RUN}}})", "run"),
                "worst of {{run}}",
            ),
            query(f"quantile(0.5, rank:sdk_cost:ratio_15m{{{RUN}}})", "median"),
            query(f"min(goodput_sdk_budget_ratio{{{RUN}}})", "budget"),
            query(
                top_over_range(
                    3, f"max by (run) (rate(goodput_deep_look_cost_seconds_total{{{RUN}}}[{RATE}]))", "run"
                ),
                "deep looks of {{run}}",
            ),
        ],
    ).decimals(3)
    return colour_series(panel, {"budget": RED})


@PANELS.add
def _sdk_unmeasured():
    panel = lines(
        "Trainers: dropped and unmeasured",
        "Records that the SDK dropped, steps of which only the length was measured, loader workers beyond a page's room, in a minute; ranks "
        "whose phases are off (right). Dropped records: goodput is called wrongly there. Unmeasured steps: measuring their phases would "
        "cost more than the budget, so their time is unattributed.",
        place=(8, 28, 8, 8),
        unit="short",
        no_value="no rank is measured",
        queries=[
            query(f"{rate_of('goodput_sdk_dropped_total', 'what', RUN)} * 60 > 0", "dropped {{what}}"),
            query(f"{rate_of('goodput_sdk_unmeasured_steps_total', '', RUN)} * 60", "steps by length alone"),
            query(f"sum(goodput_loader_workers_unmeasured_total{{{RUN}}})", "workers not measured"),
            query(f"count(goodput_sdk_phases_every{{{RUN}}} == 0) or vector(0)", "ranks without phases"),
        ],
    )
    return series_options(panel, "ranks without phases", unit="short", axis_right=True)


@PANELS.add
def _sdk_costliest_ranks():
    cost = f"topk(10, max by (run, rank, host) (rank:sdk_cost:ratio_15m{{{RUN}}} * on (run, rank) group_left (host) {_HOST}))"
    panel = rows(
        "Ranks with the highest overhead",
        "The ten ranks in which measuring costs most, with their host and what their budget allows. One host for all of them: its CPUs are "
        "overloaded, see the pressure on its board. All ranks alike: the run's own phases are many; see the run.",
        place=(16, 28, 8, 8),
        unit="percentunit",
        no_value="no rank is measured",
        first=["run", "rank", "host"],
        sort="cost",
        columns=[
            column(cost, "cost"),
            column(
                f"max by (run, rank) (goodput_sdk_budget_ratio{{{RUN}}}) and on (run, rank) {cost}", "budget"
            ),
            column(
                f"max by (run, rank) (goodput_sdk_phases_every{{{RUN}}}) and on (run, rank) {cost}",
                "phases measured",
            ),
        ],
    ).decimals(3)
    override(panel, "phases measured", {"unit": "bool_yes_no"})
    link_to(panel, "run", "Open the run", address("goodput-run", {"run": "field:run"}))
    return link_to(
        panel, "rank", "Open the rank", address("goodput-rank", {"run": "field:run", "rank": "field:rank"})
    )


_HOST = "topk by (run, rank) (1, group by (run, rank, host) (goodput_rank_info))"

NODE = 'instance=~"$instance"'
NO_AGGREGATOR = "no aggregator is scraped"
BAD = 'code=~"4..|5.."'
NO_AGENT = "no node agent is scraped"


# -- What there is


@PANELS.add
def _targets():
    panel = numbers(
        "Availability of the stack",
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
    series_options(panel, "agents that answer", unit="none", steps=[(None, "text")])
    series_options(panel, "versions", unit="none", steps=[(None, GREEN), (2, YELLOW)])
    for name in ("collectors failing", "drivers failing"):
        series_options(panel, name, unit="none", steps=[(None, GREEN), (1, RED)])
    return panel


@PANELS.add
def _aggregator_state():
    panel = numbers(
        "Aggregator state",
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
    return series_options(
        panel, "next expiry in", unit="s", steps=[(None, RED), (259200, YELLOW), (1209600, GREEN)]
    )


# -- The aggregator: rate, errors, duration


@PANELS.add
def _requests():
    return lines(
        "Aggregator: requests and reports",
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


@PANELS.add
def _refusals():
    def all_of(series: str, by: str) -> str:
        return f"{rate_of(f'goodput_aggregator_{series}_total', by)} * 60 > 0"

    return lines(
        "Aggregator: errors per minute",
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


@PANELS.add
def _durations():
    gathered = f"sum by (le, route) (rate(goodput_aggregator_request_seconds_bucket[{RATE}]))"
    taken = f"({rate_of('goodput_aggregator_reports_total')} > 0)"
    return lines(
        "Aggregator: request duration",
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


@PANELS.add
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


@PANELS.add
def _failures():
    def one(series: str, by: str) -> str:
        return f"{rate_of(series, by, NODE)} * 60 > 0"

    return lines(
        "Agents: errors per minute",
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
            query(
                " or ".join(
                    f'label_replace({one(series, "")}, "what", "{what}", "", "")'
                    for what, series in {
                        "rows thinned": "goodput_node_rows_thinned_total",
                        "rank events dropped": "goodput_node_events_dropped_total",
                        "rank reports refused": "goodput_node_reports_refused_total",
                        "health events dropped": "goodput_health_events_dropped_total",
                    }.items()
                ),
                "{{what}}",
            ),
            query(one("goodput_node_token_reload_errors_total", ""), "token file"),
            query(
                f"count by (file) (goodput_node_reload_failing{{{NODE}}} > 0)", "agents, unusable: {{file}}"
            ),
        ],
    )


@PANELS.add
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
                top_over_range(3, f"max by (instance) (goodput_node_scrape_seconds{{{NODE}}})", "instance"),
                "scrape of {{instance}}",
            ),
            query(
                top_over_range(
                    4, f"max by (collector) (goodput_node_collector_seconds{{{NODE}}})", "collector"
                ),
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
    return link_to(panel, "/^scrape of/", "Open the node", to_node)


# -- What they cost, and what waits


@PANELS.add
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
    return series_options(panel, "memory", unit="bytes", axis_right=True)


@PANELS.add
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
            query(top_over_range(3, f"node:agent_cpu:ratio_5m{{{NODE}}}", "instance"), "{{instance}}"),
            query(f"quantile(0.5, node:agent_cpu:ratio_5m{{{NODE}}})", "median"),
            query(f"max(goodput_node_memory_bytes{{{NODE}}})", "memory of an agent"),
            query(f"max(goodput_driver_memory_bytes{{{NODE}}})", "memory of a driver"),
        ],
        steps=[(None, GREEN), (0.05, YELLOW)],
    )
    for name in ("memory of an agent", "memory of a driver"):
        series_options(panel, name, unit="bytes", axis_right=True)
    return panel


@PANELS.add
def _backlog():
    return lines(
        "Agents: backlog and stuck drivers",
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


@PANELS.add
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
    return colour_series(
        panel, {"rejected": RED, "dead": STATE_COLOURS["down"], "live": STATE_COLOURS["productive"]}
    )


def board() -> builders.Dashboard:
    return build_board(
        "goodput-stack",
        "Do aggregator and agents take all that comes, quickly and without loss, and what do they and the SDK cost?",
        variables=[optional_run_variable(), agent_variable()],
        panels=PANELS,
    )
