"""The records that cross a process: fields, version, encoding and bounds, shared by node agent and aggregator.

MessagePack by msgspec; a report of 8 ranks with 20 steps each is about 11 KiB and decodes in well under a millisecond.
Everything is cumulative or keyed, so lost, repeated and reordered reports change nothing: a step row carries the rank's
totals at its end and is keyed by its number, an event by its number, and the live part is superseded by a higher
`sequence`. Times are unix ns on the rank's own host clock; they are compared within a rank and its attempts, never
subtracted between hosts.

Version 2 has steps in blocks, version 1 had them as rows. The aggregator accepts both, and each of its answers lists the
versions it supports in VERSIONS_HEADER, so that an agent uses the newest that both support.

    body = encode(report); report = decode(body)    # raises SchemaError, nothing else
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Struct

from goodput.wire import compiled
from goodput.wire.collectives import Collectives, Operations, operations_problem
from goodput.wire.collectives import problem as collective_problem
from goodput.wire.connections import Connections, connections_problem
from goodput.wire.identity import BOUNDS, PLACES, RUN_CHARACTERS_MAX, check_fields, clean_text
from goodput.wire.lenient_decoding import names_of, not_utf8, path_of_text, right_fields
from goodput.wire.ras import RasAnswer, ras_problem
from goodput.wire.sampled_stacks import stacks_problem
from goodput.wire.step_blocks import BlockError, StepBlock, check_block, encode_rows

VERSION = 2
VERSIONS = (1, 2)  # that are accepted
VERSIONS_HEADER = "goodput-report-versions"  # of every answer to a push: "1, 2"
CONTENT_TYPE = "application/vnd.goodput.report+msgpack"
BODY_BYTES_MAX = 32 << 20
RANKS_MAX, HEALTH_MAX = 4096, 1024  # of one report
STEPS_MAX, EVENTS_MAX, PHASES_MAX = 200_000, 20_000, 28  # of one rank; steps also of all ranks of a report
BLOCKS_MAX = 1024  # of one rank
DROPS_MAX, LOADER_MAX, HARDWARE_MAX = 32, 64, 32  # figures of one rank
HITS_MAX = 256  # ranks of one health event
# An account has an entry for every expected rank, so one report must not make the aggregator run out of memory.
WORLD_SIZE_MAX = 1 << 18
# Stacks requested in one Ack, sent in one report, and the length of one.
STACK_REQUESTS_MAX, STACKS_MAX, STACK_CHARS_MAX = 16, 16, 1 << 16
TIME_NS_MAX = 1 << 62
# Of fields that `check` bounds more narrowly: decoding a hostile report holds the interpreter's lock.
_FEW = msgspec.Meta(max_length=1024)
# A rank report with a field of a wrong type is decoded a second time, without types, if it is no larger.
_UNTYPED_BYTES_MAX = 1 << 20
# Of larger reports each rank is decoded by itself, so that other threads run in between; the largest
# rank held the lock for 0.46 s on a busy machine. Agents send up to a third of this of a rank.
_WHOLE_BYTES_MAX, RANK_BYTES_MAX = 256 << 10, 12 << 20
_IDENTITY_INTEGERS = {
    **{name: BOUNDS[name] for name in ("rank", "attempt", "devices", *PLACES)},
    "world_size": (1, WORLD_SIZE_MAX),
    **dict.fromkeys(("pid", "start_ns"), (0, TIME_NS_MAX - 1)),
}
_IDENTITY_TEXTS = {
    "run": RUN_CHARACTERS_MAX,
    **dict.fromkeys(
        ("host", "device", "device_uuid", "group", "role", "worker", "dtype", "flops_unknown"), 255
    ),
}


class SchemaError(ValueError):
    """A report that cannot be used; the text names the field and the rank."""


# Records cannot be part of a reference cycle, so the garbage collector may skip them (gc=False). The aggregator holds
# hundreds of thousands; traversing them took a third of its time.
class StepRow(Struct, array_like=True, frozen=True, gc=False):
    """A completed step. `totals` and `outside` are cumulative ns per entry of RankReport.phases.

    `device_ns` is how much of the steps' length so far was divided into phases by a device's clock.
    Rows may be missing in between; the next row's totals include them.
    """

    number: int  # 1 for the attempt's first step
    step: int
    start_ns: int
    end_ns: int
    samples: int  # cumulative
    totals: Annotated[tuple[int, ...], _FEW]
    outside: Annotated[tuple[int, ...], _FEW]
    device_ns: int = 0


class EventRow(Struct, array_like=True, frozen=True, gc=False):
    """A checkpoint begun or committed, a resume, or a mark."""

    number: int
    kind: str
    time_ns: int
    step: int
    text: str = ""


class SampledStacks(Struct, array_like=True, frozen=True, gc=False):
    """Samples of a rank's main thread in no phase, cumulative: by place ("FILE:FUNCTION, line N"), and in all.

    `reason` says why there are none.
    """

    places: Annotated[dict[str, int], _FEW]
    samples: int
    reason: str = ""


class Live(Struct, frozen=True, gc=False, omit_defaults=True):
    """The rank at one moment; a higher RankReport.sequence replaces it whole."""

    now_ns: int  # when the agent read the page
    last_ns: int  # the rank's last phase or step boundary
    phase: str
    step_next: int
    steps_done: int
    samples: int
    alive: bool
    ended: str  # "", "finished", "failed", "resumed"; a rank that is not alive and has "" was killed
    end_ns: int  # meaningful when ended, else 0
    totals: Annotated[tuple[int, ...], _FEW]
    cost_ns: int = 0
    drops: Annotated[dict[str, int], _FEW] = {}
    unmeasured: int = 0  # steps of which only the length was measured
    loader: Annotated[dict[str, int], _FEW] = {}  # rank_page.loader_words.FIGURES, cumulative, without zeros
    # Cumulative activity of the rank's GPU: compute_ns (covered by samples while the rank was in a compute phase),
    # idle_ns (the part of it in which the GPU was idle), energy_mj; since_ns: unix time of the agent's first sample.
    # At its last sample: busy_ppm, the share of time in which a kernel ran, and power_mw.
    hardware: Annotated[dict[str, int], _FEW] = {}
    stacks: SampledStacks | None = None  # None: no more than was sent before
    collectives: Collectives | None = None  # of a rank without progress; None: as before
    operations: Operations | None = None  # of process groups, cumulative; None: as before
    connections: Connections | None = None  # of a rank that waits for communication; None: as before
    ras: RasAnswer | None = None  # of the rank's job while it hangs; None: as before


class Identity(Struct, frozen=True, gc=False, omit_defaults=True):
    """A rank process: its key, its placement and its declared fields.

    run, rank, attempt, host, pid and start are constant for a process; the rest is of the report of highest sequence.
    """

    run: str
    rank: int
    attempt: int
    world_size: int
    host: str
    pid: int
    start_ns: int
    device: str = ""
    device_uuid: str = ""
    devices: int = 1
    group: str = ""
    stage: int | None = None
    flops_per_step: float | None = None
    peak_flops_per_second: float | None = None
    gpu_hour_cost: float | None = None
    tensor: int | None = None
    microbatches: int | None = None
    dtype: str = ""
    hardware_flops_per_step: float | None = None
    ideal_samples_per_second: float | None = None
    gpu_power_watts: float | None = None
    submit_time: float | None = None
    worker: str = ""  # of a process without a rank: its name in its program; `rank` is a number then
    role: str = ""
    total_steps: int | None = None
    flops_unknown: str = ""  # why there are no flops_per_step
    # What its devices together reach in its dtype, as `goodput probe` measured on this node; the agent's, not the rank's.
    reached_flops_per_second: float | None = None
    # The bus bandwidth of an all-reduce over at least as many ranks, likewise.
    reached_bus_bytes_per_second: float | None = None
    # Copies from host memory to the device in the rank's last traced step (a deep look), and pinned ones in the probe.
    h2d_bytes_per_second: float | None = None
    reached_h2d_bytes_per_second: float | None = None
    # The share of its time that its main thread was ready to run without a core; the agent's.
    core_wait_ratio: float | None = None
    clock_moved_seconds: float | None = None  # how far the aggregator moved all its times


class RankReport(Struct, frozen=True, gc=False, omit_defaults=True):
    """What is new of one rank process since the last acknowledged report, and its live part.

    Its steps travel in `blocks`; `steps` has them as rows within a process, and in version 1. `sequence` grows: it is
    the node's unix ns when its agent read the page, or one more than before.
    """

    identity: Identity
    sequence: int
    phases: Annotated[tuple[str, ...], _FEW]
    live: Live
    phase_states: Annotated[dict[str, str], _FEW] = {}
    steps: Annotated[list[StepRow], msgspec.Meta(max_length=2 * STEPS_MAX)] = []
    events: Annotated[list[EventRow], msgspec.Meta(max_length=2 * EVENTS_MAX)] = []
    blocks: Annotated[list[StepBlock], msgspec.Meta(max_length=2 * BLOCKS_MAX)] = []


class MalformedRank(RankReport, frozen=True, gc=False):
    """Stands for a rank's part of a push that cannot be decoded, with what could be read of its name; `check` refuses it."""

    problem: str = ""


class StackRequest(Struct, frozen=True, gc=False):
    """Identifies a rank process, here the one whose stack is requested."""

    run: str
    rank: int
    host: str
    pid: int
    start_ns: int


def stack_request(identity: Identity) -> StackRequest:
    return StackRequest(identity.run, identity.rank, identity.host, identity.pid, identity.start_ns)


class Stack(Struct, frozen=True, gc=False):
    """A process's Python stack as text, or why it could not be taken. `time_ns` is on its host's clock."""

    of: StackRequest
    time_ns: int
    text: str


class Health(Struct, frozen=True, gc=False):
    """Something that happened to a node's hardware, and the ranks that used it then.

    number    unique and growing per node, also over restarts of its agent
    kind      one of health_kinds.HEALTH_KINDS, or one of a later version
    device    a GPU's uuid or the name of a link
    severity  info, warning, critical
    hits      (run, rank) of the processes on the device
    """

    number: int
    kind: str
    device: str
    time_ns: int
    code: int = 0
    name: str = ""
    severity: str = "warning"
    text: str = ""
    hits: list[tuple[str, int]] = []


class NodeReport(Struct, frozen=True):
    """One push of a node agent.

    previous_sent_ns  `sent_ns` of the last push that was answered, 0 before the first
    previous_took_ns  how long that one took from `sent_ns` to its answer, by the agent's monotonic clock
    """

    node: str
    sent_ns: int
    ranks: list[RankReport]
    version: int = VERSION
    stacks: Annotated[list[Stack], _FEW] = []
    health: list[Health] = []
    previous_sent_ns: int = 0
    previous_took_ns: int = 0
    agent: str = ""  # the agent's version; earlier releases do not report it


class _LooseReport(NodeReport, frozen=True):
    """A report whose ranks, stacks and health events are not decoded yet."""

    ranks: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=2 * RANKS_MAX)] = []
    stacks: Annotated[list[msgspec.Raw], _FEW] = []
    health: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=2 * HEALTH_MAX)] = []


SEVERITIES = ("info", "warning", "critical")  # of a Health event
REJECTED_FOR = ("malformed", "claim", "phases", "runs", "ranks", "scope", "time")


class Rejection(Struct, frozen=True):
    """A rank report that was rejected; `reason` is one of REJECTED_FOR."""

    run: str
    rank: int
    reason: str
    text: str


class Ack(Struct, frozen=True):
    """The answer to a push, sent when everything accepted is on disk, so that the agent may forget it."""

    accepted: int
    rejected: list[Rejection] = []
    wanted: list[StackRequest] = []


_encoder = msgspec.msgpack.Encoder()
_report_decoder = msgspec.msgpack.Decoder(NodeReport)
_loose_decoder = msgspec.msgpack.Decoder(_LooseReport)
_rank_decoder = msgspec.msgpack.Decoder(RankReport)
_stack_decoder = msgspec.msgpack.Decoder(Stack)
_health_decoder = msgspec.msgpack.Decoder(Health)
_ack_decoder = msgspec.msgpack.Decoder(Ack)


def encode(record: Struct) -> bytes:
    """A record as bytes. Raises SchemaError for a value that MessagePack cannot carry."""
    try:
        return _encoder.encode(record)
    except (OverflowError, TypeError, ValueError) as error:
        raise SchemaError(f"cannot be encoded: {error}") from None


def decode(body: bytes) -> NodeReport:
    """A report from its bytes. Validates the envelope; `check` validates each rank report.

    A rank's part that cannot be decoded becomes a MalformedRank, a malformed health event one that `is_health` rejects,
    and a malformed stack is left out: the others of the push are unaffected. A rank of more than RANK_BYTES_MAX refuses
    the push, so that its steps come again in parts.
    """
    if len(body) > BODY_BYTES_MAX:
        raise SchemaError(f"report of {len(body)} bytes, {BODY_BYTES_MAX} at most")
    try:
        try:
            report = _report_decoder.decode(body) if len(body) <= _WHOLE_BYTES_MAX else None
        except (msgspec.ValidationError, UnicodeDecodeError):
            report = None
        if report is None:
            loose = _loose_decoder.decode(body)
            report = msgspec.structs.replace(
                loose,
                ranks=[_decode_rank(raw, at) for at, raw in enumerate(loose.ranks)],
                stacks=[stack for raw in loose.stacks if (stack := _decode_stack(raw)) is not None],
                health=[_decode_health(raw) for raw in loose.health],
            )
    except UnicodeDecodeError as error:
        raise SchemaError(f"malformed report: `$.node` or `$.agent` is {not_utf8(error)}") from None
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise SchemaError(f"malformed report: {error}") from None
    if report.version not in VERSIONS:
        supported = " and ".join(map(str, VERSIONS))
        raise SchemaError(f"report version {report.version}, this aggregator supports {supported}")
    if len(report.ranks) > RANKS_MAX:
        raise SchemaError(f"{len(report.ranks)} ranks in one report, {RANKS_MAX} at most")
    if len(report.health) > HEALTH_MAX:
        raise SchemaError(f"{len(report.health)} health events in one report, {HEALTH_MAX} at most")
    return report


def _decode_rank(raw: msgspec.Raw, at: int) -> RankReport:
    """A rank report, without optional fields of a wrong type; a MalformedRank if another one is wrong.

    Raises ValueError if it is too large.
    """
    size = memoryview(raw).nbytes
    if size > RANK_BYTES_MAX:
        raise ValueError(
            f"`$.ranks[{at}]` has {size} bytes, {RANK_BYTES_MAX} at most; push its steps in parts"
        )
    try:
        return _rank_decoder.decode(raw)
    except UnicodeDecodeError as error:
        where = f"`$.ranks[{at}]{path_of_text(raw)}`"
        return _malformed_rank(raw, f"{where} is {not_utf8(error)}")
    except msgspec.ValidationError as error:
        problem = str(error).replace("`$", f"`$.ranks[{at}]", 1)
    try:
        fields = msgspec.msgpack.decode(raw) if size <= _UNTYPED_BYTES_MAX else None
        if isinstance(fields, dict):
            for name, part in (("identity", Identity), ("live", Live)):
                if isinstance(fields.get(name), dict):
                    fields[name] = right_fields(part, fields[name])
            return msgspec.convert(right_fields(RankReport, fields), RankReport, strict=True)
    except (ValueError, RecursionError):
        pass
    return _malformed_rank(raw, problem)


def _malformed_rank(raw: msgspec.Raw, problem: str) -> MalformedRank:
    run, rank, host = names_of(raw)
    return MalformedRank(Identity(run, rank, 0, 0, host, 0, 0), 0, (), _PLAIN_LIVE, problem=problem)


def _decode_stack(raw: msgspec.Raw) -> Stack | None:
    try:
        return _stack_decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None


def _decode_health(raw: msgspec.Raw) -> Health:
    try:
        return _health_decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return Health(-1, "", "", -1)


def decode_ack(body: bytes) -> Ack:
    try:
        return _ack_decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise SchemaError(f"malformed answer: {error}") from None


def in_blocks(report: RankReport) -> RankReport:
    """The report with its rows, which are in ascending number, as a block. Raises SchemaError for values out of range."""
    if not report.steps:
        return report
    try:
        block = encode_rows(report.steps, len(report.phases))
    except OverflowError as error:
        raise SchemaError(f"{name_of(report)}: steps cannot be encoded: {error}") from None
    return msgspec.structs.replace(report, steps=[], blocks=[*report.blocks, block])


def name_of(report: RankReport) -> str:
    """A rank as errors name it."""
    return f"run {report.identity.run[:64]!r} rank {report.identity.rank}"


def check(report: RankReport, is_known: bool = False) -> None:
    """Raise SchemaError if a rank's report is invalid; the other ranks of the push are unaffected.

    The rows in its blocks are checked when these are decoded. `is_known` is for a report whose identity and phases are
    those of one that was accepted before.
    """
    if isinstance(report, MalformedRank):
        raise SchemaError(f"{name_of(report)}: {report.problem}")
    who, width = name_of(report), len(report.phases)
    if not is_known:
        _check_declared(report, who)
    if not _is_time(report.sequence):
        raise SchemaError(f"{who}: sequence {report.sequence} out of range")
    steps = len(report.steps) + _count_in_blocks(report.blocks, width, who)
    if steps > STEPS_MAX or len(report.events) > EVENTS_MAX:
        raise SchemaError(f"{who}: {steps} steps and {len(report.events)} events in one report")
    check_live(report.live, report.phases, who)
    for row in report.steps:
        check_step(row, width, who)
    for event in report.events:
        _check_event(event, who)


def _check_declared(report: RankReport, who: str) -> None:
    """Check a report's identity and phases."""
    try:
        check_fields(partial(getattr, report.identity), _IDENTITY_INTEGERS, _IDENTITY_TEXTS)
    except ValueError as error:
        raise SchemaError(f"{who}: {error}") from None
    width = len(report.phases)
    if not 1 <= width <= PHASES_MAX or len(set(report.phases)) != width or report.phases[0] != "none":
        raise SchemaError(f"{who}: phases must be 'none' and up to {PHASES_MAX - 1} distinct others")
    if any(not 0 < len(name) <= 32 or not name.isprintable() for name in report.phases):
        raise SchemaError(f"{who}: a phase name is empty, over 32 characters or not printable")
    if not report.phase_states.keys() <= set(report.phases):
        raise SchemaError(f"{who}: phase_states names an unknown phase")
    if any(len(state) > 32 or not state.isprintable() for state in report.phase_states.values()):
        raise SchemaError(f"{who}: a state in phase_states is over 32 characters or not printable")


def without_wrong_options(report: RankReport) -> RankReport:
    """The report with defaults for optional fields of its identity and live part that `check` would refuse."""
    identity, live = report.identity, report.live
    for name in _OPTIONAL_IDENTITY:
        usual = msgspec.structs.replace(_PLAIN_IDENTITY, **{name: getattr(identity, name)})
        try:
            check_fields(partial(getattr, usual), _IDENTITY_INTEGERS, _IDENTITY_TEXTS)
        except ValueError:
            identity = msgspec.structs.replace(identity, **{name: getattr(_PLAIN_IDENTITY, name)})
    for name in _OPTIONAL_LIVE:
        usual = msgspec.structs.replace(_PLAIN_LIVE, **{name: getattr(live, name)})
        try:
            check_live(usual, ("none",), "")
        except SchemaError:
            live = msgspec.structs.replace(live, **{name: getattr(_PLAIN_LIVE, name)})
    return msgspec.structs.replace(report, identity=identity, live=live)


def with_printable_texts(report: RankReport) -> RankReport:
    """The report with "?" for what is not printable in its events' texts, such as a terminal's control sequences."""
    if not report.events or all(event.text.isprintable() for event in report.events):
        return report
    events = [
        msgspec.structs.replace(event, text=clean_text(event.text, len(event.text)))
        for event in report.events
    ]
    return msgspec.structs.replace(report, events=events)


_PLAIN_IDENTITY = Identity("run", 0, 1, 1, "", 1, 0)
_PLAIN_LIVE = Live(0, 0, "none", 0, 0, 0, True, "", 0, (0,))
_OPTIONAL_IDENTITY = [field.name for field in msgspec.structs.fields(Identity) if not field.required]
_OPTIONAL_LIVE = [field.name for field in msgspec.structs.fields(Live) if not field.required]


def is_stack(stack: Stack) -> bool:
    """Whether a stack may be kept and shown: its text is bounded and, but for line ends, printable."""
    text = stack.text
    return len(text) <= STACK_CHARS_MAX and text.replace("\n", " ").isprintable() and _is_time(stack.time_ns)


def is_health(event: Health) -> bool:
    """Whether an event may be kept and shown: its texts are bounded and printable, its numbers in range."""
    texts = (event.kind, event.device, event.name, event.text, *(run for run, _ in event.hits))
    return (
        all(len(text) <= 255 and text.isprintable() for text in texts)
        and event.kind != ""
        and event.severity in SEVERITIES
        and all(map(_is_time, (event.number, event.time_ns, event.code)))
        and len(event.hits) <= HITS_MAX
        and all(0 <= rank < WORLD_SIZE_MAX for _, rank in event.hits)
    )


def _is_time(ns: int) -> bool:
    return 0 <= ns < TIME_NS_MAX


def check_live(live: Live, phases: tuple[str, ...], who: str) -> None:
    """Raise SchemaError if a live part is invalid for a rank with these phases."""
    numbers = (
        *(live.now_ns, live.last_ns, live.end_ns, live.steps_done, live.samples, live.cost_ns),
        *(live.step_next + 1, live.unmeasured, *live.drops.values()),
    )
    if not _are_times(numbers):
        raise SchemaError(f"{who}: a live time or count is negative or too large")
    for figures, most, what in (
        (live.drops, DROPS_MAX, "kinds of drops"),
        (live.loader, LOADER_MAX, "loader figures"),
        (live.hardware, HARDWARE_MAX, "GPU figures"),
    ):
        if figures and (
            len(figures) > most or max(map(len, figures)) > 32 or not "".join(figures).isprintable()
        ):
            raise SchemaError(
                f"{who}: {len(figures)} {what}, {most} at most, or a name over 32 characters or not printable"
            )
    if not _are_times((*live.loader.values(), *live.hardware.values())):
        raise SchemaError(f"{who}: a loader figure or GPU figure is negative or too large")
    if live.stacks is not None and (problem := stacks_problem(live.stacks)):
        raise SchemaError(f"{who}: {problem}")
    if live.collectives is not None and (problem := collective_problem(live.collectives)):
        raise SchemaError(f"{who}: {problem}")
    if live.operations is not None and (problem := operations_problem(live.operations)):
        raise SchemaError(f"{who}: {problem}")
    if live.connections is not None and (problem := connections_problem(live.connections)):
        raise SchemaError(f"{who}: {problem}")
    if live.ras is not None and (problem := ras_problem(live.ras)):
        raise SchemaError(f"{who}: {problem}")
    if live.phase not in phases or live.ended not in ("", "finished", "failed", "resumed"):
        raise SchemaError(f"{who}: live phase {live.phase[:40]!r} or end reason {live.ended[:40]!r} unknown")
    if len(live.totals) != len(phases) or not _are_times(live.totals):
        raise SchemaError(f"{who}: live totals do not match the phases")


def _are_times(numbers: Sequence[int]) -> bool:
    return not numbers or (min(numbers) >= 0 and max(numbers) < TIME_NS_MAX)


def _count_in_blocks(blocks: list[StepBlock], width: int, who: str) -> int:
    """The number of rows. Raises SchemaError if a block cannot be decoded."""
    if len(blocks) > BLOCKS_MAX:
        raise SchemaError(f"{who}: {len(blocks)} step blocks in one report, {BLOCKS_MAX} at most")
    rows = -1 if compiled.steps is None else compiled.steps.count_rows(blocks, width, STEPS_MAX)
    if rows >= 0:
        return rows
    for at, block in enumerate(blocks):
        try:
            check_block(block, width, STEPS_MAX)
        except BlockError as error:
            raise SchemaError(f"{who}: step block {at}: {error}") from None
    return sum([block.count for block in blocks])


def check_step(row: StepRow, width: int, who: str) -> None:
    """Raise SchemaError for a row that no rank can have recorded."""
    where = f"{who}: step row {row.number} (step {row.step})"
    if not 1 <= row.number < TIME_NS_MAX or not _is_time(row.step) or not _is_time(row.samples):
        raise SchemaError(f"{where}: number, step or samples out of range")
    if not 0 <= row.start_ns <= row.end_ns < TIME_NS_MAX:
        raise SchemaError(f"{where}: negative duration, it starts {row.start_ns} and ends {row.end_ns}")
    if len(row.totals) != width or len(row.outside) != width:
        raise SchemaError(f"{where}: {len(row.totals)} totals for {width} phases")
    for total, outside in zip(row.totals, row.outside, strict=True):
        if not 0 <= outside <= total < TIME_NS_MAX:
            raise SchemaError(f"{where}: totals are negative or less than their part outside steps")
    if not 0 <= row.device_ns <= sum(row.totals) - sum(row.outside):
        raise SchemaError(
            f"{where}: {row.device_ns} ns on the device clock is negative or more than the steps took"
        )


def _check_event(event: EventRow, who: str) -> None:
    if not 1 <= event.number < TIME_NS_MAX or not _is_time(event.time_ns) or not _is_time(event.step + 1):
        raise SchemaError(f"{who}: event {event.number} has an invalid number, time or step")
    if not 0 < len(event.kind) <= 32 or not event.kind.isprintable() or len(event.text) > 255:
        raise SchemaError(f"{who}: event {event.number} has an invalid kind, or a text over 255 characters")
