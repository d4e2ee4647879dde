"""goodput / Communication: what a run's collectives, sends and receives cost, what hides them, and whom they wait for."""

from __future__ import annotations

from dashboards import board_builder, panels, promql
from dashboards.board_builder import CollapsedRow, build_board
from dashboards.panels import COLOUR_TEXT, GAUGE, RED, YELLOW, series
from dashboards.promql import RATE, named_operations
from dashboards.states import ONE_IS_BAD, STATE_COLOURS

RUN = 'run="$run"'
OPERATION = "group, operation"
# By their names in the tables.
PARTS = {
    "late ranks": STATE_COLOURS["straggler"],
    "transfer": STATE_COLOURS["communication"],
    "not known": STATE_COLOURS["unobserved"],
}
NO_RECORDS = "no collectives are recorded"
NO_STAGES = "no sends and receives of stages are recorded"
NOT_HIDDEN = "it is not known what is hidden, as with NCCL"


def _max(series: str, by: str = "", more: str = "") -> str:
    """The run's value: the largest, and so the newest, of the aggregators that share the run."""
    return f"max{f' by ({by}) ' if by else ''}({series}{{{RUN}{more}}})"


def _part(part: str) -> str:
    return _max("goodput_communication_part_gpu_seconds", OPERATION, f',part="{part}"')


def _hidden(bound: str) -> str:
    return _max("goodput_communication_hidden_gpu_seconds", OPERATION, f',bound="{bound}"')


def _hidden_share(bound: str) -> str:
    """Of the time in which calls of an operation were under way; both are sums since the run's start."""
    hidden = _hidden(bound)
    return f"{hidden} / ({hidden} + on ({OPERATION}) {SECONDS} > 0)"


def _found(series: str) -> str:
    """How many ranks a series names."""
    return f"count({_max(series, 'rank')}) or vector(0)"


def _rate(name: str) -> str:
    return promql.rate_of(name, OPERATION, RUN)


def _wait(per: str) -> str:
    return _max("goodput_pipeline_wait_seconds", "stage, operation", f',per="{per}"')


def _of_nodes(expr: str) -> str:
    """Of the nodes with ranks of the run."""
    return f"topk(10, {expr} and on (instance) group by (instance) (goodput_rank_info{{{RUN}}}))"


SECONDS = _max("goodput_communication_gpu_seconds", OPERATION)
BUS = _max("goodput_communication_bus_bytes_per_second", OPERATION)
# Of the ranks' time, the mean part.
EXPOSED = (
    f"{_rate('goodput_collective_exposed_seconds_total')} / on () group_left () "
    f"count(max by (rank) (goodput_rank_alive{{{RUN}}}))"
)
# Waiting that turns out to be for a late rank moves from one part to another, all at once. Neither is the parts' sum then
# negative or too large: what they gain is scaled to what all of them gain.
_DERIVATIVE = f"deriv(goodput_communication_part_gpu_seconds{{{RUN}}}[{RATE}])"
PART_GAINS = f"clamp_min(sum by (part) ({_DERIVATIVE}), 0)"
for _part_is, _named in (("skew", "late ranks"), ("unknown", "not known")):
    PART_GAINS = f'label_replace({PART_GAINS}, "part", "{_named}", "part", "{_part_is}")'
ALL_GAINS = f"clamp_min(sum({_DERIVATIVE}), 0)"
SCALED_GAINS = f"{PART_GAINS} / on () group_left () (sum({PART_GAINS}) > 0) * on () group_left () {ALL_GAINS}"
CALLS = _rate("goodput_collective_calls_total")
LINK = "instance, device"
BAD_LINKS = {
    "retransmissions": _of_nodes(promql.rate_of("goodput_infiniband_retransmits_total", LINK, "", "5m")),
    "link errors": _of_nodes(
        f"({promql.rate_of('goodput_infiniband_errors_total', LINK, '', '5m')} or "
        f"{promql.rate_of('goodput_network_errors_total', LINK, '', '5m')})"
    ),
    "share of line rate": _of_nodes(
        f"max by ({LINK}) (infiniband_port:utilisation:ratio_5m or network_device:utilisation:ratio_5m)"
    ),
}
SLOW, SLOW_LINK = "goodput_straggler_slow_issue_seconds", "goodput_straggler_slow_link_bytes_per_second"
WHO, WHOSE_LINK = "rank, host, group, operation", "rank, host, address"
TO_RANK = panels.link("rank", "Open the rank", "goodput-rank", run="run", rank="field:rank")

BAD_LINKS_TABLE = panels.table(
    "Links of the run's nodes",
    "The ports and interfaces with the most retransmissions and errors per second over five minutes, and those nearest to "
    "their line rate. Errors on one link alone: cable, transceiver or switch port; a full link: what else uses it.",
    BAD_LINKS,
    unit="cps",
    no_value="no link is seen on the run's nodes",
    first=["instance", "device"],
    sort=("retransmissions", "link errors", "share of line rate"),
    overrides=[
        series("share of line rate", "percentunit", [(None, "text"), (0.8, YELLOW)]),
        *((name, {"decimals": 2}) for name in ("retransmissions", "link errors")),
        panels.link("instance", "Open the node", "goodput-node", run="run", instance="field:instance"),
    ],
)

PANELS = [
    # What waiting costs, by operation and by what was waited for.
    panels.stats(
        "Waiting in communication",
        "Share of the run's GPU time since its start in which ranks waited in collectives, sends and receives; and which "
        "part of that was for late ranks, which for transfers, and of which it is not known. Late ranks lead: see the run board "
        "for the slow rank. Transfers lead: see below what is hidden, how large the calls are, and what the links carry.",
        {
            "of GPU time": f"sum({SECONDS}) / sum({_max('goodput_gpu_seconds', 'state')})",
            "for late ranks": f"sum({_part('skew')}) / (sum({SECONDS}) > 0)",
            "for transfers": f"sum({_part('transfer')}) / (sum({SECONDS}) > 0)",
            "not known": f"sum({_part('unknown')}) / (sum({SECONDS}) > 0)",
        },
        unit="percentunit",
        no_value=NO_RECORDS,
    ),
    panels.stats(
        "Delays and hangs that were found",
        "Ranks whose calls are slow to return, ranks with a slow link, and whether the run hangs. None is the ordinary case."
        " One or more: expand the row 'Delays and hangs' at the end of this board, which names them.",
        {
            "slow calls": _found(SLOW),
            "slow links": _found(SLOW_LINK),
            "hangs": f"count({_max('goodput_hang_seconds')} > 0) or vector(0)",
        },
        unit="none",
        no_value=NO_RECORDS,
        steps=ONE_IS_BAD,
    ),
    panels.table(
        "What the waiting was for",
        "Time that ranks waited in each operation, the share of it for the last rank to arrive (late ranks), for what even "
        "that one paid (transfer), and not known which; and what was hidden behind other work, at least and at most. Begin "
        "with the largest; late ranks: the run board names them; transfer: overlap, fewer calls or a faster link.",
        {
            "GPU hours": named_operations(f"{SECONDS} / 3600"),
            "late ranks": named_operations(f"{_part('skew')} / ({SECONDS} > 0)"),
            "transfer": named_operations(f"{_part('transfer')} / ({SECONDS} > 0)"),
            "not known": named_operations(f"{_part('unknown')} / ({SECONDS} > 0)"),
            "hidden ≥": f"{_hidden('low')} / 3600",
            "hidden ≤": f"{_hidden('high')} / 3600",
        },
        unit="percentunit",
        no_value=NO_RECORDS,
        first=["group", "operation"],
        sort="GPU hours",
        overrides=[
            *(series(name, "suffix: GPU h") for name in ("GPU hours", "hidden ≥", "hidden ≤")),
            *((name, {"decimals": 2}) for name in ("GPU hours", "hidden ≥", "hidden ≤")),
            ("late ranks", GAUGE | {"min": 0, "max": 1}),
            ("transfer", GAUGE | {"min": 0, "max": 1}),
        ],
    ),
    # The same over time.
    panels.areas(
        "Waiting for late ranks, and transfer",
        "GPUs that wait, on average, by what for; unknown where ranks take turns in being late. Late ranks grow: a rank is "
        "slow, or the work is uneven. Transfer grows alone: a link, or others' traffic.",
        {"{{part}}": f"{SCALED_GAINS} or {PART_GAINS}"},
        unit="suffix: GPUs",
        no_value=NO_RECORDS,
        overrides=panels.colours(PARTS),
    ),
    panels.lines(
        "Exposed time by operation",
        "Share of the ranks' time in which training waited in each operation of each process group. One that grows: its "
        "calls became larger or more, its overlap was lost, or its group has a slow link.",
        {"{{group}} {{operation}}": EXPOSED},
        unit="percentunit",
        no_value=NO_RECORDS,
    ),
    panels.lines(
        "Hidden share by operation",
        "Of the time in which calls of an operation were under way, the share in which training did other work, at least "
        "and at most, since the run's start. It falls: overlap was lost, so look at bucket sizes, prefetching and the order "
        "of calls.",
        {
            "{{group}} {{operation}} ≥": _hidden_share("low"),
            "{{group}} {{operation}} ≤": _hidden_share("high"),
        },
        unit="percentunit",
        no_value=NOT_HIDDEN,
    ).max(1),
    # What the calls are like.
    panels.table(
        "Bus bandwidth against its ceiling",
        "What the links of a rank carried at most while training waited, or at least while NCCL's calls were on the device, as "
        "the bus bandwidth of nccl-tests, since the run's start, and what they can: as `goodput probe` reached it, or their nominal rate (link). Far below: messages too "
        "small, a slow link, or sockets in place of RDMA; above: a part is hidden, or switches reduce.",
        {
            "at most": BUS,
            "at least": _max("goodput_communication_bus_min_bytes_per_second", OPERATION),
            "ceiling": _max("goodput_communication_bus_ceiling_bytes_per_second", f"{OPERATION}, source"),
            "share": f"{BUS} / on ({OPERATION}) group_right () "
            f"{_max('goodput_communication_bus_ceiling_bytes_per_second', f'{OPERATION}, source')}",
        },
        unit="Bps",
        no_value="the sizes of the groups are not known",
        first=["group", "operation", "source"],
        sort="at most",
        overrides=[series("share", "percentunit"), ("share", GAUGE | {"min": 0, "max": 1})],
    ),
    panels.lines(
        "Size and number of calls",
        "Bytes of a call, a rank's own part, and on the right the calls of all ranks per second. Below a megabyte a call "
        "takes about as long as an empty one: send fewer and larger ones (DDP buckets, FSDP units of more layers).",
        {
            "{{group}} {{operation}}": f"{_rate('goodput_collective_bytes_total')} / ({CALLS} > 0)",
            "calls, {{group}} {{operation}}": CALLS,
        },
        unit="bytes",
        no_value=NO_RECORDS,
        overrides=[series("/^calls, /", "cps", right="")],
    ),
    BAD_LINKS_TABLE,
]

PIPELINE = [
    panels.lines(
        "Pipeline: waiting per step, by stage",
        "How long a rank of each stage waits in its receives and its sends in a step, on average since the run's start. "
        "Early stages wait in receives of gradients, late ones of activations; one stage that hardly waits is the slow one.",
        {"stage {{stage}}, {{operation}}": _wait("step")},
        unit="s",
        no_value=NO_STAGES,
    ),
    panels.lines(
        "Pipeline: waiting per microbatch, by stage",
        "The same for each microbatch, which does not grow with their number. Steady waiting in every microbatch: stages "
        "are uneven or links slow; waiting that shrinks with more microbatches is the bubble.",
        {"stage {{stage}}, {{operation}}": _wait("microbatch")},
        unit="s",
        no_value=NO_STAGES,
    ),
]

# Whom, and which link, all wait for.
CULPRITS = [
    panels.table(
        "Rank whose calls are slow to return",
        "The rank for which all others wait while it starts a collective, with the time of its calls in a step and that of "
        "its peers. Look at that rank's CPUs, its network interface, and its communication hook.",
        {
            "its calls": _max(SLOW, WHO, ',of="rank"'),
            "its peers'": _max(SLOW, WHO, ',of="peers"'),
        },
        unit="s",
        no_value="no rank's calls are slow to return",
        first=["rank", "host", "group", "operation"],
        sort="its calls",
        overrides=[series("its calls", "s", [(None, RED)]), ("its calls", COLOUR_TEXT), TO_RANK],
    ),
    panels.table(
        "Rank with a slow link",
        "The rank whose link all others wait for, by the TCP connections between the ranks: what it carries while it has "
        "data to send, and what other links do. Look at that node's interface, cable and switch port, and at others' "
        "traffic on the way; links of RDMA are not seen here.",
        {
            "its link": _max(SLOW_LINK, WHOSE_LINK, ',of="link"'),
            "other links": _max(SLOW_LINK, WHOSE_LINK, ',of="others"'),
        },
        unit="Bps",
        no_value="no rank's link is slow",
        first=["rank", "host", "address"],
        sort="its link",
        overrides=[series("its link", "Bps", [(None, RED)]), ("its link", COLOUR_TEXT), TO_RANK],
    ),
    panels.table(
        "Collective in which the run hangs",
        "How long ranks have waited in the collective in which the run hangs and what is wrong with it, and the rank that "
        "causes it with its phase; where the network is to blame, how long ago faults of links were reported. Save that "
        "rank's stack, then restart from the last checkpoint; docs/collectives.md has what each kind means.",
        {
            "waiting": _max("goodput_hang_collective_seconds", "kind, operation, group"),
            "culprit since": _max("goodput_hang_culprit_seconds", "rank, host, phase"),
            "link fault ago": f"bottomk(5, time() - {_max('goodput_hang_link_timestamp_seconds', 'kind, host, device')})",
        },
        unit="s",
        no_value="the run does not hang",
        first=["kind", "operation", "group", "rank", "host", "device", "phase"],
        sort=("waiting", "culprit since", "link fault ago"),
        overrides=[TO_RANK],
    ),
]

BOARD = build_board(
    "goodput-communication",
    "What do the run's collectives, sends and receives cost, what hides them, and whom and which link do they wait for?",
    PANELS,
    [(4, 14, 10), (8, 24), (8, 8, 8, 8), (8, 12, 12), (9, 24)],
    rows=[
        CollapsedRow(
            "Delays and hangs: the rank, link or collective that is named", CULPRITS, [(6, 12, 12), (7, 24)]
        ),
        CollapsedRow("Pipelines: waiting by stage, for runs that have several", PIPELINE, [(8, 12, 12)]),
    ],
    variables=[board_builder.RUN],
)
