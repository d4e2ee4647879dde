"""goodput / The stack itself: whether the agents, the aggregator and the SDK work, and what they cost."""

from __future__ import annotations

from dashboards import board_builder, panels
from dashboards.board_builder import build_board
from dashboards.panels import GREEN, RED, YELLOW, series
from dashboards.promql import RATE, on_node, rate_of, top_over_range
from dashboards.states import COVERAGE_STEPS, ONE_IS_BAD, STATE_COLOURS

RUN = 'run=~"$run"'
NODE = 'instance=~"$instance"'
NO_AGGREGATOR = "no aggregator is scraped"
NO_AGENT = "no node agent is scraped"
NO_RANK = "no rank is measured"
# Of the label values of what goes as it should, and of what does not.
GOOD, BAD, WORSE = "#5794f2", "#ff7383", "#e02f44"
OUTCOMES = {
    "reports accepted": GOOD,
    "reports malformed": BAD,
    "reports failed": WORSE,
    "rows new": "#2f9fa8",
    "rows repeated": "#ff9830",
    "stacks accepted": "#b877d9",
    "stacks ignored": "#d683ce",
    "ingest": "#c9d2de",
    "health events": "#64b49a",
}
PUSHES = {
    "pushes accepted": GOOD,
    "pushes rejected": BAD,
    "pushes unreachable": WORSE,
    "samples of nvml": "#2f9fa8",
    "samples of dcgm": "#b877d9",
    "health events": "#64b49a",
}


# -- The aggregator


def _refused(series: str, by: str) -> str:
    return f"{rate_of(f'goodput_aggregator_{series}_total', by)} * 60 > 0"


def _in_quarter(series: str, by: str = "") -> str:
    return f"round({rate_of(f'goodput_aggregator_{series}_total', by, window='15m')} * 900)"


HTTP_ERRORS = rate_of("goodput_aggregator_requests_total", "code", 'code=~"4..|5.."')
AGGREGATOR_ERRORS = " or ".join(
    f'label_replace({_refused(what, "")}, "what", "{what.removesuffix("_errors")}", "", "")'
    for what in (
        *("ledger_errors", "token_reload_errors", "tls_reload_errors", "stack_samples_dropped"),
        "stream_answers_dropped",
    )
)
NOT_TAKEN = 'outcome!="accepted"'
OTLP_LOST = rate_of("goodput_aggregator_otlp_points_total", "outcome", NOT_TAKEN)
DURATIONS = "rate(goodput_aggregator_request_seconds_bucket[$__rate_interval])"
INGEST = f"{rate_of('goodput_aggregator_ingest_seconds_total')} / ({rate_of('goodput_aggregator_reports_total')} > 0)"


# -- The agents


def _failed(series: str, by: str = "") -> str:
    return f"{rate_of(series, by, NODE)} * 60 > 0"


AGENT_ERRORS = " or ".join(
    f'label_replace({_failed(series, "reason")}, "reason", "{what}: $1", "reason", "(.*)")'
    for what, series in {
        "push": "goodput_node_push_failures_total",
        "rejected": "goodput_node_push_rejections_total",
        "page": "goodput_node_page_errors_total",
        "request": "goodput_node_requests_refused_total",
    }.items()
)
AGENT_DROPS = " or ".join(
    f'label_replace({_failed(series)}, "what", "{what}", "", "")'
    for what, series in {
        "rows thinned": "goodput_node_rows_thinned_total",
        "rank events dropped": "goodput_node_events_dropped_total",
        "rank reports refused": "goodput_node_reports_refused_total",
        "health events dropped": "goodput_health_events_dropped_total",
    }.items()
)
AGENT_OTLP_LOST = rate_of("goodput_node_otlp_points_total", "outcome", f"{NODE}, {NOT_TAKEN}")
COLLECTOR_SECONDS = f"max by (collector) (goodput_node_collector_seconds{{{NODE}}})"

# -- The trainers

SDK_COST = f"rank:sdk_cost:ratio_15m{{{RUN}}}"
# Over a quarter of an hour, since one step in ten minutes is traced.
TRACE_COST = f"max by (run) (rate(goodput_deep_look_cost_seconds_total{{{RUN}}}[15m]))"
_HOST = "topk by (run, rank) (1, group by (run, rank, host) (goodput_rank_info))"
COSTLIEST = f"topk(10, max by (run, rank, host) ({SDK_COST} * on (run, rank) group_left (host) {_HOST}))"

PANELS = [
    # What there is.
    panels.stats(
        "Availability of the stack",
        "Share of aggregators and agents that Prometheus can scrape, number of agents, failing collectors and "
        "driver processes, and versions; of several aggregators over a stream (docs/scale.md) the share that reach it, and the "
        "partitions that none of them serves. Below 100 %: nodes that are down or unreachable; the targets page of "
        "Prometheus lists them. More than one version: an upgrade that is not finished.",
        {
            "aggregators": 'avg(up{job="goodput-aggregator"})',
            "agents": 'avg(up{job="goodput-node"})',
            "agents up": "count(goodput_node_info)",
            "collectors failing": f"count(goodput_node_collector_up{{{NODE}}} == 0) or vector(0)",
            "drivers failing": f"count(goodput_driver_up{{{NODE}}} == 0) or vector(0)",
            "versions": "count(count by (version) (goodput_node_info or goodput_aggregator_info))",
            "reach the stream": "avg(goodput_aggregator_stream_connected)",
            "partitions unserved": "min(goodput_aggregator_partitions_unserved)",
        },
        unit="percentunit",
        no_value="Prometheus has no targets",
        steps=COVERAGE_STEPS,
        overrides=[
            series("agents up", "none", [(None, "text")]),
            series("versions", "none", [(None, GREEN), (2, YELLOW)]),
            *(
                series(name, "none", ONE_IS_BAD)
                for name in ("collectors failing", "drivers failing", "partitions unserved")
            ),
        ],
    ),
    panels.stats(
        "Aggregator state",
        "Runs in memory, connections, signed-in browsers, valid tokens and the time until the next one and the next "
        "certificate expires, and the series of all agents and aggregators, by what there is one of. "
        "Runs that are over leave memory for the ledger. Many series by rank: docs/metrics.md has what to leave out. "
        "No token: it listens on loopback alone. About to expire: "
        "create a new token and distribute it to the agents first. A clock that is seconds off: check NTP on the node "
        "that GoodputClocksContradict names.",
        {
            "runs": "max(goodput_aggregator_runs)",
            "runs in the ledger alone": "max(goodput_aggregator_runs_stored)",
            "connections": "sum(goodput_aggregator_connections)",
            "sessions": "sum(goodput_aggregator_sessions)",
            "{{scope}} tokens": "max by (scope) (goodput_aggregator_tokens)",
            "series by {{level}}": "sum by (level) (goodput_node_series or goodput_aggregator_series)",
            "worst clock of a node": "max(abs(goodput_node_clock_offset_seconds))",
            "own clock was set by": "max(abs(goodput_aggregator_clock_step_seconds))",
            "OTLP accepted ago": (
                "max(goodput_node_otlp_accepted_age_seconds or goodput_aggregator_otlp_accepted_age_seconds)"
            ),
            "next expiry in": "min(goodput_aggregator_token_expiry_timestamp_seconds) - time()",
            "next certificate expires in": (
                "min(goodput_aggregator_certificate_expiry_timestamp_seconds or "
                "goodput_node_certificate_expiry_timestamp_seconds) - time()"
            ),
        },
        unit="none",
        no_value=NO_AGGREGATOR,
        overrides=[
            series(name, "s", [(None, RED), (259200, YELLOW), (1209600, GREEN)])
            for name in ("next expiry in", "next certificate expires in")
        ]
        + [
            series(name, "s", [(None, GREEN), (1, YELLOW), (5, RED)])
            for name in ("worst clock of a node", "own clock was set by")
        ]
        + [series("OTLP accepted ago", "s", [(None, GREEN), (180, YELLOW), (600, RED)])],
    ),
    # The aggregator: rate, errors, duration.
    panels.lines(
        "Aggregator: requests and reports",
        "Requests by route, accepted reports and rows per second; repeated rows were sent again after a lost "
        "response, parts of pushes that went into the stream and came out of it (--stream), and exports over OTLP (--otlp). "
        "Reports fall to zero: no agent reaches it. As many repeated as new rows: responses are lost or "
        "too late; see the duration.",
        {
            "{{route}}": f"topk(3, {rate_of('goodput_aggregator_requests_total', 'route')})",
            "reports {{outcome}}": rate_of("goodput_aggregator_reports_total", "outcome"),
            "rows {{kind}}": rate_of("goodput_aggregator_rows_total", "kind"),
            "health events": rate_of("goodput_aggregator_health_events_total"),
            "stacks {{outcome}}": rate_of("goodput_aggregator_stacks_total", "outcome"),
            "OTLP {{outcome}}": rate_of("goodput_aggregator_otlp_exports_total", "outcome"),
            "stream: {{outcome}}": rate_of("goodput_aggregator_stream_messages_total", "outcome"),
            "from the stream: {{outcome}}": rate_of("goodput_aggregator_stream_read_total", "outcome"),
        },
        unit="reqps",
        no_value=NO_AGGREGATOR,
        overrides=panels.colours(OUTCOMES),
    ),
    panels.lines(
        "Aggregator: errors per minute",
        "Refused and failed requests. ledger: nothing is acknowledged until it writes again; free its disk or "
        "database. ledger refused rows: the aggregator's log names the run, all else is stored. not "
        "authorized: a wrong or expired token, see the agent. 5xx: read the aggregator's log. refused: the named "
        "limit was reached. clamped: clocks contradict each other. stack_samples_dropped: more ranks of a run "
        "were sampled than are kept. invalid: 1 while the newest version of "
        "the file is invalid. OTLP points: the receiver did not take them (docs/otlp.md). Zero is normal.",
        {
            "{{code}}": f"{HTTP_ERRORS} * 60 > 0",
            "not authorized: {{reason}}": _refused("auth_failures", "reason"),
            "refused: {{reason}}": _refused("requests_refused", "reason"),
            "refused: token {{token}} ({{bound}})": _refused("token_refusals", "token, bound"),
            "rank rejected: {{reason}}": _refused("rank_rejections", "reason"),
            "ledger refused rows of {{table}}": _refused("ledger_refused_rows", "table"),
            "{{what}}": AGGREGATOR_ERRORS,
            "invalid: {{file}}": "max by (file) (goodput_aggregator_reload_failing) > 0",
            "clamped: {{what}}": _refused("clamped", "what"),
            "left out of the audit log: {{kind}}": _refused("audit_dropped", "kind"),
            "OTLP points {{outcome}}": f"{OTLP_LOST} * 60 > 0",
            "health dropped: {{reason}}": _refused("health_dropped", "reason"),
        },
        unit="short",
        axis="errors per minute",
        no_value="no error in this time",
    ),
    panels.lines(
        "Aggregator: request duration",
        "p99 by route and the median of all requests, from headers to response, the time to ingest one report, "
        "how long a push takes through the stream until the ledger has it, and "
        "how old the series were when they were scraped and how long rendering them took. "
        "p99 of pushes near the timeout of the agents (they retry): the ledger's disk, or one core for too many "
        "ranks. Only pages are slow: queries over long history.",
        {
            "p99 {{route}}": f"topk(6, histogram_quantile(0.99, sum by (le, route) ({DURATIONS})))",
            "p50": f"histogram_quantile(0.5, sum by (le) ({DURATIONS}))",
            "ingest of a report": INGEST,
            "through the stream": "max(goodput_aggregator_stream_delay_seconds)",
            "age of the series": "max(timestamp(goodput_aggregator_series_timestamp_seconds) "
            "- goodput_aggregator_series_timestamp_seconds)",
            "age of a run's series": "max(timestamp(goodput_run_series_timestamp_seconds) "
            "- goodput_run_series_timestamp_seconds)",
            "rendering the series": "max(goodput_aggregator_series_render_seconds)",
        },
        unit="s",
        no_value="no request in this time",
        steps=[(None, GREEN), (0.1, YELLOW), (1, RED)],
    ),
    panels.lines(
        "Aggregator: used share of its bounds",
        "What is full makes room (the oldest runs leave memory for the ledger) or refuses: runs and rank processes that "
        "report now, a token's share of them and of bytes and CPU time of pushes, connections, bodies of reports, sessions, health events, ranks with stack samples, pending history queries, and "
        "memory (--memory). At 1 for "
        "long: see the errors beside it, and move runs to a second aggregator.",
        {
            "{{bound}}": "max by (bound) (goodput_aggregator_bound_used_ratio)",
        },
        unit="percentunit",
        no_value=NO_AGGREGATOR,
        steps=ONE_IS_BAD,
    ).axis_soft_max(1),
    # The agents: rate, errors, duration.
    panels.lines(
        "Agents: pushes and samples",
        "Per second: pushed reports by outcome, samples of drivers, requested stacks, bursts of stack samples, ranks "
        "whose connections were read since they wait for communication, queries of NCCL's RAS (--nccl-ras), hardware "
        "events, exports over OTLP (--otlp). "
        "Unreachable: aggregator or network. Rejected: see the errors beside. Less than one sample per second for "
        "each driver: a driver that is slow or hangs.",
        {
            "pushes {{outcome}}": rate_of("goodput_node_pushes_total", "outcome", NODE),
            "samples of {{driver}}": rate_of("goodput_driver_samples_total", "driver", NODE),
            "stacks {{outcome}}": rate_of("goodput_node_stacks_total", "outcome", NODE),
            "bursts of stacks {{outcome}}": rate_of("goodput_node_stack_bursts_total", "outcome", NODE),
            "connections {{outcome}}": rate_of("goodput_node_connection_reads_total", "outcome", NODE),
            "NCCL's RAS {{outcome}}": rate_of("goodput_node_ras_queries_total", "outcome", NODE),
            "health events": rate_of("goodput_health_events_total", "", NODE),
            "OTLP {{outcome}}": rate_of("goodput_node_otlp_exports_total", "outcome", NODE),
        },
        unit="cps",
        no_value=NO_AGENT,
        overrides=panels.colours(PUSHES),
    ),
    panels.lines(
        "Agents: errors per minute",
        "Errors of all agents. push: the aggregator did not accept a report (unauthorized: the token). page: an "
        "unreadable rank page. collector, driver: read the agent's log. rows thinned: the aggregator was away for "
        "long; no time is lost. A path: a file of --textfile-dir that is refused. invalid: agents whose newest token file or certificate is invalid. Zero is "
        "normal, except for pages of ranks that just start.",
        {
            "{{reason}}": AGENT_ERRORS,
            "collector {{collector}}": _failed("goodput_node_collector_errors_total", "collector"),
            "calls of {{driver}}": _failed("goodput_driver_problems_total", "driver"),
            "implausible {{quantity}} of {{driver}}": _failed(
                "goodput_driver_implausible_readings_total", "driver, quantity"
            ),
            "samples of {{driver}} dropped": _failed("goodput_driver_samples_dropped_total", "driver"),
            "{{driver}} replaced: {{reason}}": _failed("goodput_driver_restarts_total", "driver, reason"),
            "{{what}}": AGENT_DROPS,
            "{{file}}: {{reason}}": f"topk(5, max by (file, reason) (goodput_textfile_refused{{{NODE}}}))",
            "token file": _failed("goodput_node_token_reload_errors_total"),
            "OTLP points {{outcome}}": f"{AGENT_OTLP_LOST} * 60 > 0",
            "agents, invalid: {{file}}": f"count by (file) (goodput_node_reload_failing{{{NODE}}} > 0)",
        },
        unit="short",
        axis="errors per minute",
        no_value="no error in this time",
    ),
    panels.lines(
        "Agents: duration",
        "Duration of the three slowest scrapes and two slowest collectors, and the age of the oldest samples of drivers and "
        "GPUs. Above the scrape timeout all series of that node are missing. A slow collector: a file system or a "
        "driver that responds late. Old samples: the driver hangs.",
        {
            "scrape of {{node}}": on_node(
                top_over_range(3, f"max by (instance) (goodput_node_scrape_seconds{{{NODE}}})", "instance")
            ),
            "collector {{collector}}": top_over_range(2, COLLECTOR_SECONDS, "collector"),
            "oldest sample of {{driver}}": f"max by (driver) (goodput_driver_sample_age_seconds{{{NODE}}})",
            "oldest text file": f"time() - min(goodput_textfile_modified_timestamp_seconds{{{NODE}}}) > 300",
            "oldest sample of a GPU": f"max(goodput_gpu_sample_age_seconds{{{NODE}}})",
        },
        unit="s",
        no_value=NO_AGENT,
        steps=[(None, GREEN), (4, RED)],
        overrides=[panels.link("/^scrape of/", "Open the node", "goodput-node", instance="label:instance")],
    ),
    # Cost and backlog.
    panels.lines(
        "Aggregator: cores and memory",
        "CPU of each aggregator, and on the right memory and its bound. A whole core for long: it cannot keep up; move "
        "runs to a second one. Memory at its bound: the oldest runs leave for the ledger, then pushes wait.",
        {
            "CPU {{instance}}": rate_of("goodput_aggregator_cpu_seconds_total", "instance"),
            "memory": "sum(goodput_aggregator_memory_bytes)",
            "bound of memory": "sum(goodput_aggregator_memory_limit_bytes)",
        },
        unit="suffix: cores",
        no_value=NO_AGGREGATOR,
        steps=ONE_IS_BAD,
        overrides=[
            *(series(name, "bytes", right="") for name in ("memory", "bound of memory")),
        ],
    ),
    panels.lines(
        "Aggregator: its ledger",
        "Size of the ledgers, and on the right how fast they grow and what compaction frees, each second. The ledger "
        "only grows: goodput ledger show says what it holds, and which runs never ended. Growth far above what is "
        "freed for days: plan its disk, or keep steps for less long.",
        {
            "ledger": "sum(goodput_aggregator_ledger_bytes)",
            "growth": "sum(deriv(goodput_aggregator_ledger_bytes[1h]))",
            "freed": rate_of("goodput_aggregator_ledger_freed_bytes_total"),
        },
        unit="bytes",
        no_value=NO_AGGREGATOR,
        overrides=[series(name, "Bps", right="") for name in ("growth", "freed")],
    ),
    panels.lines(
        "Aggregator: runs and blocks moved",
        "What leaves memory for the ledger or comes back, and what its compaction merges, thins and closes, in the last "
        "fifteen minutes; partitions of the stream that each aggregator serves, and those taken from another. Runs that come "
        "back again and again: more are read than memory holds; raise --memory. No block is merged for hours while rows "
        "arrive: the compaction does not keep up. Partitions taken all the time: aggregators die, or the stream is slow.",
        {
            "blocks {{how}}": _in_quarter("ledger_blocks_compacted", "how"),
            "rows thinned": _in_quarter("ledger_rows_thinned"),
            "runs closed": _in_quarter("ledger_runs_closed"),
            "runs moved: {{why}}": _in_quarter("runs_moved", "why"),
            "left memory: {{what}}": _in_quarter("memory_freed", "what"),
            "partitions taken": _in_quarter("partition_takeovers"),
            "partitions of {{instance}}": "max by (instance) (goodput_aggregator_partitions)",
        },
        unit="short",
        axis="in 15 minutes",
        no_value=NO_AGGREGATOR,
    ),
    panels.lines(
        "Agents: cores and memory",
        "CPU of the three busiest agents with their driver processes, the median of all, of the busiest py-spy, and "
        "the largest memory of an agent and of a driver process (right). Above 1 % of a core: many GPUs or links sampled too often, or a "
        "slow driver. Memory grows: the agent replaces such a process itself.",
        {
            "{{node}}": on_node(top_over_range(3, f"node:agent_cpu:ratio_5m{{{NODE}}}", "instance")),
            "median": f"quantile(0.5, node:agent_cpu:ratio_5m{{{NODE}}})",
            "py-spy": f"max(rate(goodput_node_stack_bursts_cpu_seconds_total{{{NODE}}}[{RATE}]))",
            "memory of an agent": f"max(goodput_node_memory_bytes{{{NODE}}})",
            "memory of a driver": f"max(goodput_driver_memory_bytes{{{NODE}}})",
        },
        unit="percentunit",
        no_value=NO_AGENT,
        steps=[(None, GREEN), (0.05, YELLOW)],
        overrides=[series(name, "bytes", right="") for name in ("memory of an agent", "memory of a driver")],
    ),
    panels.lines(
        "Agents: backlog and stuck drivers",
        "Step rows and health events that the aggregator has not acknowledged, in total and of the fullest agent; pushes "
        "that wait in the stream; driver processes that cannot be killed. Growing: pushes fail, see the errors, or the "
        "aggregators are slower than the stream. Falling in steps: the "
        "aggregator is back. The backlog is bounded: rows beyond the bound are thinned, no time is lost.",
        {
            "rows": f"sum(goodput_node_backlog_rows{{{NODE}}})",
            "rows, fullest agent": f"max(goodput_node_backlog_rows{{{NODE}}})",
            "health events": f"sum(goodput_health_events_waiting{{{NODE}}})",
            "unkillable processes": f"sum(goodput_driver_processes_unkillable{{{NODE}}})",
            "waiting in the stream": "sum(goodput_aggregator_stream_pending_messages)",
        },
        unit="short",
        axis="rows, messages",
        no_value=NO_AGENT,
    ),
    panels.lines(
        "Rank pages",
        "Pages of ranks on all nodes: live, dead, and rejected; ranks whose process was not found on the node "
        "(another PID namespace). Rejected: another version of goodput, or a foreign file in the folder. Fewer "
        "live pages than ranks: ranks that do not load goodput, or write into another folder than the agent reads. Nodes "
        "whose folder of pages is no mount of its own or has no bound: any user can fill what the node needs.",
        {
            "{{state}}": f"sum by (state) (goodput_node_pages{{{NODE}}})",
            "nodes, folder without own {{problem}}": (
                f"sum by (problem) (goodput_node_page_directory_problem{{{NODE}}}) > 0"
            ),
            "process not found": f"count(goodput_rank_process_known{{{NODE}}} == 0) or vector(0)",
        },
        unit="short",
        axis="pages",
        no_value=NO_AGENT,
        overrides=panels.colours(
            {"rejected": RED, "dead": STATE_COLOURS["down"], "live": STATE_COLOURS["productive"]}
        ),
    ),
    # The trainers.
    panels.lines(
        "Trainers: measurement overhead",
        "Time of the SDK over the time of its rank: the worst rank of the three worst runs and the median, against "
        "the smallest budget. Above it: the SDK stops measuring phases, see beside. Stays above: too many declared "
        "phases in a step, or deep looks too often.",
        {
            "worst of {{run}}": top_over_range(3, f"max by (run) ({SDK_COST})", "run"),
            "median": f"quantile(0.5, {SDK_COST})",
            "budget": f"min(goodput_sdk_budget_ratio{{{RUN}}})",
            "deep looks of {{run}}": top_over_range(3, TRACE_COST, "run"),
        },
        unit="percentunit",
        no_value=NO_RANK,
        overrides=panels.colours({"budget": RED}),
    ).decimals(3),
    panels.lines(
        "Trainers: dropped and unmeasured",
        "Per minute: records that the SDK dropped, steps without measured phases; loader workers beyond the room "
        "of a page, and ranks whose phases are off (right). Dropped records: goodput is called wrongly there. "
        "Unmeasured steps: measuring their phases would exceed the budget, so their time is unattributed.",
        {
            "dropped {{what}}": f"{rate_of('goodput_sdk_dropped_total', 'what', RUN)} * 60 > 0",
            "steps without phases": f"{rate_of('goodput_sdk_unmeasured_steps_total', '', RUN)} * 60",
            "workers not measured": f"sum(goodput_loader_workers_unmeasured_total{{{RUN}}})",
            "ranks without phases": f"count(goodput_sdk_phases_every{{{RUN}}} == 0) or vector(0)",
        },
        unit="short",
        axis="per minute",
        no_value=NO_RANK,
        overrides=[series("ranks without phases", "short", right="ranks")],
    ),
    panels.table(
        "Ranks with the highest overhead",
        "The ten ranks with the highest cost of measuring, with their host and budget. One host for all of them: "
        "its CPUs are overloaded, see the pressure on its board. All ranks alike: the run declares many phases; "
        "see the run.",
        {
            "cost": COSTLIEST,
            "budget": f"max by (run, rank) (goodput_sdk_budget_ratio{{{RUN}}}) and on (run, rank) {COSTLIEST}",
            "phases": f"max by (run, rank) (goodput_sdk_phases_every{{{RUN}}}) "
            f"and on (run, rank) {COSTLIEST}",
        },
        unit="percentunit",
        no_value=NO_RANK,
        first=["run", "rank", "host"],
        sort="cost",
        overrides=[
            ("phases", {"unit": "bool_yes_no"}),
            panels.link("run", "Open the run", "goodput-run", run="field:run"),
            panels.link("rank", "Open the rank", "goodput-rank", run="field:run", rank="field:rank"),
        ],
    ).decimals(3),
]

BOARD = build_board(
    "goodput-stack",
    "Do the aggregator and the agents accept all reports quickly and without loss, and what do they and the SDK cost?",
    PANELS,
    [(4, 12, 12), (10, 7, 5, 5, 7), (8, 8, 8, 8), (8, 8, 8, 8), (8, 8, 8, 8), (8, 8, 8, 8)],
    variables=[board_builder.OPTIONAL_RUN, board_builder.AGENT],
)
