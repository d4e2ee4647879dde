"""Decoding and checking: bytes give a record or a SchemaError; invalid ranks are rejected with a reason."""

import copy
import math

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace
from support.account.account_history import Process, assert_closes, ns
from support.aggregator.reports import body_of, node_report, rank_report, story

from goodput.account import compute
from goodput.aggregator.ingest.pushed_steps import decode_steps, in_version_2
from goodput.aggregator.ingest.store import ReportRejected, Store
from goodput.wire import schema
from goodput.wire.step_columns import step_rows

NOW = ns(2000)
MOST = schema.TIME_NS_MAX


def valid() -> schema.RankReport:
    """A report with a few records of each kind, so that a mutated byte often hits a checked field."""
    one = Process(user={"mine": "loader"}, flops_per_step=1e12, stage=2, group="dp0").between(none=1)
    return rank_report(one.steps(3, forward=1, mine=0.25, samples=8).saved().begun(forward=0.5))


OTHER = rank_report(Process(1).step(forward=1).killed())
BODIES = {version: body_of(valid(), OTHER, version=version) for version in schema.VERSIONS}
BODY = BODIES[schema.VERSION]


def use(body: bytes) -> list[str]:
    """The outcome for each rank in the aggregator. Exceptions other than SchemaError and ReportRejected are bugs."""
    report = schema.decode(body)
    store, outcomes = Store(), []
    for rank in report.ranks:
        try:
            schema.check(rank)
            (steps,) = decode_steps([in_version_2(rank)])
            if isinstance(steps, schema.SchemaError):
                raise steps
            rows = step_rows(steps, 0, len(steps), len(rank.phases))
            store.merge(replace(rank, steps=rows, blocks=[]), NOW)
            outcomes.append("accepted")
        except schema.SchemaError as error:
            outcomes.append(f"malformed: {error}")
        except ReportRejected as rejected:
            outcomes.append(rejected.reason)
    for run in store.runs.values():
        # Unreported ranks of a large world are slow to compute and test nothing more.
        run.only_ranks = tuple({rank for rank, _ in run.attempts})
        assert_closes(compute(run, NOW, stale_seconds=30))
    return outcomes


# ---- Round trips


def test_reports_round_trip():
    for push in story():
        report = node_report(*push)
        assert schema.decode(schema.encode(report)) == report
        for rank in report.ranks:
            schema.check(rank)
    ack = schema.Ack(3, [schema.Rejection("r1", 2, "claim", "why")])
    assert schema.decode_ack(schema.encode(ack)) == ack
    assert use(BODY) == ["accepted", "accepted"]


def test_unknown_fields_are_ignored():
    found = msgspec.to_builtins(msgspec.msgpack.decode(BODY))
    found["new"] = 1
    found["ranks"][0]["identity"]["new"] = {"a": [1]}
    found["ranks"][0]["live"]["new"] = None
    assert use(msgspec.msgpack.encode(found)) == ["accepted", "accepted"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "malformed report"),
        (BODY[:-1], "malformed report"),
        (BODY + b"\x00", "malformed report"),
        (b"\x91" * 100_000, "malformed report"),
        (b"\xdd\xff\xff\xff\xff", "malformed report"),
        (schema.encode(replace(node_report(), version=3)), "version 3, this aggregator supports 1 and 2"),
        (
            schema.encode(node_report(*[valid()] * (schema.RANKS_MAX + 1))),
            "4097 ranks in one report, 4096 at most",
        ),
        (
            schema.encode(node_report(health=[schema.Health(1, "xid", "g", 1)] * (schema.HEALTH_MAX + 1))),
            "1025 health events in one report, 1024 at most",
        ),
    ],
)
def test_unusable_envelope_is_rejected_with_reason(body, words):
    with pytest.raises(schema.SchemaError, match=words):
        schema.decode(body)


@pytest.mark.faults
def test_oversized_body_is_not_decoded(monkeypatch):
    monkeypatch.setattr(schema, "BODY_BYTES_MAX", len(BODY) - 1)
    with pytest.raises(schema.SchemaError, match=f"report of {len(BODY)} bytes, {len(BODY) - 1} at most"):
        schema.decode(BODY)


# ---- Invalid ranks


def with_identity(**fields):
    return lambda report: replace(report, identity=replace(report.identity, **fields))


def with_live(**fields):
    return lambda report: replace(report, live=replace(report.live, **fields))


def with_row(**fields):
    return lambda report: replace(report, steps=[report.steps[0], replace(report.steps[1], **fields)])


def with_event(**fields):
    return lambda report: replace(report, events=[replace(report.events[0], **fields)])


def with_report(**fields):
    return lambda report: replace(report, **fields)


PHASES = valid().phases
WIDTH = len(PHASES)
INVALID = {
    "no run": (with_identity(run=""), "run is empty"),
    "long run": (with_identity(run="r" * 129), "run is not printable text of at most 128"),
    "run with a control character": (with_identity(run="a\nb"), "run is not printable text"),
    "rank beyond the world": (with_identity(rank=1, world_size=1), "rank 1 in a world of 1"),
    "negative rank": (with_identity(rank=-1), "rank is -1"),
    "no world": (with_identity(world_size=0), "world_size is 0"),
    "endless world": (with_identity(world_size=schema.WORLD_SIZE_MAX + 1), "world_size is"),
    "attempt zero": (with_identity(attempt=0), "attempt is 0"),
    "attempt too large": (with_identity(attempt=1 << 21), "attempt is"),
    "no devices": (with_identity(devices=0), "devices is 0"),
    "start before time": (with_identity(start_ns=-1), "start_ns is -1"),
    "start after time": (with_identity(start_ns=MOST), f"start_ns is {MOST}, want an integer in 0.."),
    "negative pid": (with_identity(pid=-1), "pid is -1"),
    "pid beyond 64 bits": (with_identity(pid=2**64 - 1), "pid is"),
    "negative stage": (with_identity(stage=-1), "stage is -1"),
    "long host": (with_identity(host="h" * 256), "host is not printable text of at most 255"),
    "NUL in a device": (
        with_identity(device="a\0"),
        "device is not printable text of at most 255 characters",
    ),
    "FLOPs NaN": (with_identity(flops_per_step=math.nan), "flops_per_step is nan"),
    "FLOPs infinite": (with_identity(flops_per_step=math.inf), "flops_per_step is inf"),
    "peak zero": (with_identity(peak_flops_per_second=0.0), "peak_flops_per_second is 0.0"),
    "copies of no bytes": (with_identity(h2d_bytes_per_second=0.0), "h2d_bytes_per_second is 0.0"),
    "copies NaN": (with_identity(h2d_bytes_per_second=math.nan), "h2d_bytes_per_second is nan"),
    "probed copies infinite": (
        with_identity(reached_h2d_bytes_per_second=math.inf),
        "h2d_bytes_per_second is inf",
    ),
    "probed copies endless": (with_identity(reached_h2d_bytes_per_second=1e30), "h2d_bytes_per_second is 1e"),
    "probed peak negative": (
        with_identity(reached_flops_per_second=-1.0),
        "reached_flops_per_second is -1.0",
    ),
    "negative price": (with_identity(gpu_hour_cost=-1.0), "gpu_hour_cost is -1.0"),
    "negative sequence": (with_report(sequence=-1), "sequence -1"),
    "sequence beyond 64 bits": (with_report(sequence=2**64 - 1), "sequence"),
    "no phases": (with_report(phases=()), "phases must be"),
    "first phase not none": (with_report(phases=PHASES[::-1]), "phases must be"),
    "phase twice": (with_report(phases=(*PHASES[:-1], "loader")), "phases must be"),
    "phase without a name": (with_report(phases=(*PHASES[:-1], "")), "phase name"),
    "29 phases": (with_report(phases=("none", *map(str, range(28)))), "phases must be"),
    "state of no phase": (with_report(phase_states={"yours": "loader"}), "an unknown phase"),
    "endless state": (with_report(phase_states={"mine": "x" * 33}), "over 32 characters"),
    "too many steps": (with_report(steps=[valid().steps[0]] * (schema.STEPS_MAX + 1)), "200001 steps"),
    "too many events": (with_report(events=[valid().events[0]] * (schema.EVENTS_MAX + 1)), "20001 events"),
    "unknown live phase": (with_live(phase="warp"), "live phase 'warp'"),
    "unknown end": (with_live(ended="exploded"), "end reason 'exploded'"),
    "live totals too few": (with_live(totals=(1,)), "live totals do not match"),
    "negative live total": (with_live(totals=(-1,) * len(PHASES)), "live totals do not match"),
    "read before time": (with_live(now_ns=-1), "live time or count"),
    "boundary after time": (with_live(last_ns=MOST), "live time or count"),
    "steps beyond 64 bits": (with_live(steps_done=2**64 - 1), "live time or count"),
    "next step -2": (with_live(step_next=-2), "live time or count"),
    "negative cost": (with_live(cost_ns=-1), "live time or count"),
    "negative drops": (with_live(drops={"phase": -1}), "live time or count"),
    "endless drops": (with_live(drops={str(i): 1 for i in range(33)}), "33 kinds of drops"),
    "negative loader": (with_live(loader={"batches": -1}), "loader figure or GPU figure is negative"),
    "negative hardware": (with_live(hardware={"idle_ns": -1}), "loader figure or GPU figure is negative"),
    "hardware beyond 64 bits": (with_live(hardware={"energy_mj": MOST}), "loader figure or GPU figure"),
    "endless hardware": (with_live(hardware={str(i): 1 for i in range(33)}), "33 GPU figures"),
    "long hardware": (with_live(hardware={"x" * 33: 1}), "a name over 32 characters"),
    "endless loader": (with_live(loader={str(i): 1 for i in range(65)}), "65 loader figures"),
    "long loader": (with_live(loader={"x" * 33: 1}), "a name over 32 characters"),
    "row zero": (with_row(number=0), "number, step or samples"),
    "row beyond 64 bits": (with_row(number=2**64 - 1), "number, step or samples"),
    "negative step": (with_row(step=-1), "number, step or samples"),
    "negative samples": (with_row(samples=-1), "number, step or samples"),
    "negative duration": (with_row(start_ns=5, end_ns=4), "negative duration, it starts 5 and ends 4"),
    "end after time": (with_row(end_ns=MOST), "negative duration"),
    "row too narrow": (with_row(totals=(1, 2)), f"2 totals for {WIDTH} phases"),
    "row too wide outside": (with_row(outside=(0,) * (WIDTH + 1)), f"totals for {WIDTH} phases"),
    "negative total": (with_row(totals=(-1,) * WIDTH, outside=(-2,) * WIDTH), "totals are negative"),
    "outside more than all": (
        with_row(totals=(1,) * WIDTH, outside=(2,) * WIDTH),
        "less than their part outside",
    ),
    "event zero": (with_event(number=0), "event 0 has an invalid number"),
    "event beyond 64 bits": (with_event(number=2**63), "invalid number"),
    "event before time": (with_event(time_ns=-1), "invalid number, time or step"),
    "event of step -2": (with_event(step=-2), "invalid number, time or step"),
    "control characters in a state": (
        with_report(phase_states={"none": "\x1b[31m"}),
        "over 32 characters or not printable",
    ),
    "control characters in a drop": (with_live(drops={"\x1b[2J": 1}), "not printable"),
    "control characters in a loader figure": (with_live(loader={"\x9b2J": 1}), "not printable"),
    "control characters in a GPU figure": (with_live(hardware={"a\u202e": 1}), "not printable"),
    "event of no kind": (with_event(kind=""), "invalid kind"),
    "event of a long kind": (with_event(kind="k" * 33), "invalid kind"),
    "event with a long text": (with_event(text="t" * 256), "text over 255"),
}


@pytest.mark.parametrize("what", INVALID)
def test_invalid_rank_is_rejected_with_reason(what):
    change, words = INVALID[what]
    bad = change(valid())
    with pytest.raises(schema.SchemaError) as error:
        schema.check(bad)
    assert words in str(error.value)
    assert str(error.value).startswith(f"run {bad.identity.run[:64]!r} rank {bad.identity.rank}: ")
    # Also when encoded, and the report's other rank is accepted.
    outcomes = use(body_of(bad, rank_report(Process(1).step(forward=1)), version=1))
    assert outcomes[0].startswith("malformed") and outcomes[1] == "accepted"


@pytest.mark.parametrize(
    "what", [what for what in INVALID if what.startswith(("row", "negative", "end after", "outside more"))]
)
def test_invalid_row_in_a_block_is_rejected(what):
    bad = INVALID[what][0](valid())
    try:
        bad = schema.in_blocks(bad)
    except ValueError:
        assert "totals for" in INVALID[what][1]  # A row of another width has no block.
        return
    body = schema.encode(node_report(bad, rank_report(Process(1).step(forward=1))))
    outcomes = use(body)
    assert (
        outcomes[0].startswith(f"malformed: run 'r1' rank {bad.identity.rank}: ")
        and outcomes[1] == "accepted"
    )
    if bad.blocks != schema.in_blocks(valid()).blocks:
        assert ": step block 0: " in outcomes[0]


@pytest.mark.parametrize(
    "change",
    [
        with_row(step=0),  # An index that goes back is odd, and the account copes.
        with_event(step=-1),
        with_event(kind="a kind of tomorrow", text="two\nlines"),
        with_live(step_next=-1),
        with_identity(flops_per_step=None, stage=None),
        with_report(phase_states={"mine": "a state of tomorrow"}),
        with_report(steps=[], events=[]),
    ],
)
def test_unusual_reports_are_accepted(change):
    assert use(body_of(change(valid()))) == ["accepted"]


@pytest.mark.parametrize(
    ("field", "value"), [("rank", 1.5), ("run", b"bytes"), ("pid", 2**64), ("host", None)]
)
def test_wrong_field_type_rejects_the_rank(field, value):
    found = msgspec.msgpack.decode(BODY)
    try:
        found["ranks"][0]["identity"][field] = value
        body = msgspec.msgpack.encode(found)
    except OverflowError:
        body = BODY.replace(b"\xa3pid\xcd\x03\xe8", b"\xa3pid\xc4\x01x", 1)  # Such a number has no encoding.
        assert body != BODY
    rejected, accepted = use(body)
    assert rejected.startswith("malformed") and f"`$.ranks[0].identity.{field}`" in rejected
    assert accepted == "accepted"


# ---- Arbitrary bytes


@settings(max_examples=400)
@given(st.binary(max_size=200) | st.binary(max_size=40).map(lambda tail: BODY[:-40] + tail))
def test_random_bytes_raise_only_schema_error(body):
    for call in (use, schema.decode_ack):
        try:
            call(body)
        except schema.SchemaError as error:
            assert "malformed" in str(error) or "version" in str(error)


@settings(max_examples=600)
@given(
    st.lists(st.tuples(st.integers(0, len(BODY) - 1), st.integers(0, 255)), min_size=1, max_size=4),
    st.sampled_from(schema.VERSIONS),
)
@example([(0, 0x80)], 1)
def test_mutated_bytes_raise_only_schema_error(changes, version):
    body = bytearray(BODIES[version])
    for at, byte in changes:
        body[at % len(body)] = byte
    try:
        use(bytes(body))
    except schema.SchemaError:
        pass


OTHERS = {
    int: (-(2**63), -1, 0, 1, 2, 10**9, 1 << 20, MOST - 1, MOST, 2**63, 2**64 - 1),
    str: ("", "none", "mine", "loader", "x" * 300, "\0", "ü", "resumed", "checkpoint_committed", "failed"),
    float: (0.0, -1.0, 1e-300, 1e29, 1e308, math.nan, math.inf),
    bool: (True, False),
    list: ([], [1], [[]]),
    dict: ({}, {"mine": "loader"}, {"mine": 1}),
    bytes: (b"", b"\0", b"\xff" * 9, bytes(range(60)), "text"),
    type(None): (None, 3, 1.5, "text"),
}
ANY = [value for values in OTHERS.values() for value in values]


def leaves(found, path=()):
    """Paths to every value of a decoded report."""
    children = (
        found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    )
    for key, child in children:
        yield (*path, key)
        yield from leaves(child, (*path, key))


PATHS = {version: list(leaves(msgspec.msgpack.decode(body))) for version, body in BODIES.items()}


@settings(max_examples=1000)
@given(
    st.lists(st.tuples(st.integers(0, 999), st.integers(0, 99), st.booleans()), min_size=1, max_size=3),
    st.sampled_from(schema.VERSIONS),
)
def test_any_field_value_raises_only_schema_error(changes, version):
    found = msgspec.msgpack.decode(BODIES[version])
    for which, pick, any_type in changes:
        parent, path = found, PATHS[version][which % len(PATHS[version])]
        try:
            for key in path[:-1]:
                parent = parent[key]
            old = parent[path[-1]]
            others = ANY if any_type and pick % 4 == 0 else OTHERS[type(old)]
            # A copy, since a later change must not alter the value for further examples.
            parent[path[-1]] = copy.deepcopy(others[pick % len(others)])
        except (TypeError, KeyError, IndexError):
            pass  # An earlier change took that branch away.
    try:
        use(msgspec.msgpack.encode(found))
    except schema.SchemaError:
        pass


def test_row_fields_match_the_accounts():
    from goodput.account import Event, Row

    assert Row._fields == schema.StepRow.__struct_fields__
    assert Event._fields == schema.EventRow.__struct_fields__
    assert set(asdict(valid().live)) >= {"now_ns", "last_ns", "phase", "alive", "ended", "end_ns", "totals"}


def test_rank_is_decoded_up_to_a_bound(monkeypatch):
    """Decoding one rank holds the interpreter's lock, for 2.9 s where it has 30 MiB of totals."""
    monkeypatch.setattr(schema, "RANK_BYTES_MAX", 256 << 10)
    row = schema.StepRow(1, 1, 1, 1, 1, (1,) * 1000, (1,) * 1000)
    rank = replace(rank_report(Process(0).steps(1, forward=1)), steps=[row] * 200)
    with pytest.raises(schema.SchemaError, match=r"ranks\[1\]` has 40\d{4} bytes, 262144 at most"):
        schema.decode(schema.encode(node_report(replace(rank, steps=[]), rank)))
