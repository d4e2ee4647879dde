"""`goodput export`: the run log of a ledger gives the aggregator's account, to the nanosecond."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest
from support.account.account_history import Process, ns
from support.aggregator.exports import assert_export_equals_live, live_document
from support.aggregator.ledgers import NOW, aggregator, take
from support.aggregator.random_runs import random_processes
from support.aggregator.reports import body_of, rank_report, story
from support.seeds import cases

from goodput.account.text import render
from goodput.cli import main


def test_a_restarted_run_at_every_push(ledger, tmp_path):
    ingest = aggregator(ledger)
    for push in story(ranks=3):
        take(ingest, body_of(*push))
        assert_export_equals_live(ledger, ingest, tmp_path, max(report.live.now_ns for report in push))
    last = json.loads((tmp_path / "run.jsonl").read_bytes().splitlines()[-1])
    assert last["kind"] == "end", "a finished run needs no time of export"


@pytest.mark.parametrize("seed", cases(40))
def test_any_run(ledger, url, tmp_path, seed):
    if seed >= 12 and url.startswith("postgresql"):
        pytest.skip("twelve have each way that rows arrive; the other histories are SQLite's")
    rng = random.Random(seed)
    processes = random_processes(rng)
    ingest = aggregator(ledger)
    for one in processes:
        # Some rows were thinned out on the way, but for the newest.
        rows = [row for row in one.rows[:-1] if seed % 3 or rng.random() < 0.5] + one.rows[-1:]
        if seed % 4 == 0 and len(rows) > 3:
            wrong = list(rows[1].totals)
            wrong[3] += 5_000_000_007
            rows[1] = rows[1]._replace(totals=tuple(wrong))
        (answer,) = take(ingest, body_of(rank_report(one, rows=rows)))
        assert not answer.rejected, answer
    for later in (0, ns(7), ns(1000)):
        assert_export_equals_live(ledger, ingest, tmp_path, max(one.now_ns for one in processes) + later)


def test_compute_efficiency_against_the_probed_peak(ledger, tmp_path):
    """Two ranks do 1e12 FLOPs in each second of work, on devices that could do 4e12, and were probed with 2e12 and 3e12."""
    ingest = aggregator(ledger)
    processes = [Process(0), Process(1)]
    for known in (False, True):
        for one, reached in zip(processes, (2e12, 3e12), strict=True):
            one.steps(20, loader=1, forward=1)  # what the first compiled is known after 15 more
            declared = {"world_size": 2, "flops_per_step": 1e12, "peak_flops_per_second": 4e12}
            more = {"reached_flops_per_second": reached} if known else {}
            (answer,) = take(ingest, body_of(rank_report(one, **declared, **more)))
            assert not answer.rejected, answer
        document = live_document(ingest, "r1", processes[0].now_ns)
        assert document["reachable"] == ({"compute_efficiency": pytest.approx(0.4)} if known else None)
        assert document["factors"]["compute_efficiency"] == pytest.approx(0.25)
    assert "25.0% of the nominal peak, 40.0% of the probed peak" in render(document, full=True)
    assert_export_equals_live(ledger, ingest, tmp_path, processes[0].now_ns)


def test_copies_to_the_device_of_the_rank_farthest_below_its_node(ledger, tmp_path):
    """Rank 1 copies at 12 of 48 GB/s, rank 0 at 20 of 50; rank 2 is slower, but its node was not probed."""
    ingest = aggregator(ledger)
    processes = [Process(0), Process(1), Process(2), Process(3)]
    copies = ((20e9, 50e9), (12e9, 48e9), (1e9, None), (None, None))
    for one, (rate, reached) in zip(processes, copies, strict=True):
        one.steps(2, h2d=1, forward=1)
        declared = {"h2d_bytes_per_second": rate, "reached_h2d_bytes_per_second": reached, "host": "n0"}
        (answer,) = take(ingest, body_of(rank_report(one, world_size=4, **declared)))
        assert not answer.rejected, answer
    document = live_document(ingest, "r1", processes[0].now_ns)
    assert document["device_copies"] == {
        "ranks": 3,
        "rank": 1,
        "host": "n0",
        "h2d_bytes_per_second": 12e9,
        "reached_bytes_per_second": 48e9,
        "reached_ratio": 0.25,
    }
    text = " ".join(render(document, full=True).split())
    assert "copies to the device: 12 GB/s in the last traced step of rank 1 on n0, 25.0 % of what" in text
    assert "the lowest of 3 ranks" in text and "rank 1 on n0 run at 25.0 % of what its node can do" in text
    assert_export_equals_live(ledger, ingest, tmp_path, ns(8))


def test_waits_for_cores_reach_the_log(ledger, tmp_path):
    ingest, process = aggregator(ledger), Process(0)
    for ratio in (None, 0.125):
        process.steps(2, forward=1)
        (answer,) = take(ingest, body_of(rank_report(process, world_size=1, core_wait_ratio=ratio)))
        assert not answer.rejected, answer
    assert_export_equals_live(ledger, ingest, tmp_path, ns(8))
    attempt = json.loads((tmp_path / "run.jsonl").read_text().splitlines()[1])
    assert (attempt["kind"], attempt["core_wait_ratio"]) == ("attempt", 0.125)


def test_the_command(ledger, url, tmp_path, capfdbinary):
    """In this process, of which several calls cost much less; `test_hdr_log_of_a_run` starts the command."""
    ingest = aggregator(ledger)
    for push in story():
        take(ingest, body_of(*push))

    def call(*arguments):
        status = main(list(arguments))
        out, errors = (printed.decode() for printed in capfdbinary.readouterr())
        return subprocess.CompletedProcess(arguments, status, out, errors)

    assert call("export", "--ledger", url).stdout.split() == ["r1"]
    packed = str(tmp_path / "run.jsonl.gz")
    assert call("export", "r1", "--ledger", url, "--output", packed).returncode == 0
    shown = json.loads(call("replay", packed, "--json").stdout)
    want = live_document(ingest, "r1", NOW)
    assert {key: shown[key] for key in ("states", "factors", "restarts", "straggler", "ranks")} == {
        key: want[key] for key in ("states", "factors", "restarts", "straggler", "ranks")
    }
    plain = call("export", "r1", "--ledger", url)
    assert [json.loads(line)["kind"] for line in plain.stdout.splitlines()][:2] == ["run", "attempt"]
    unknown = call("export", "r2", "--ledger", url)
    assert (unknown.returncode, unknown.stdout) == (1, "") and "the last runs there: r1)" in unknown.stderr
    nothing = call("export")
    assert (nothing.returncode, nothing.stdout) == (1, "") and "name a ledger with --ledger" in nothing.stderr
    missing = call("export", "r1", "--ledger", url, "--output", str(tmp_path / "no" / "file"))
    assert missing.returncode == 1 and "No such file" in missing.stderr


def test_hdr_log_of_a_run(ledger, url, tmp_path):
    """hdrhistogram reads back every step and phase."""
    from hdrh.histogram import HdrHistogram
    from hdrh.log import HistogramLogReader

    ingest = aggregator(ledger)
    one = Process(0, 1, 1000.0).between(restore=2)
    lengths = {"step": [], "loader": [], "forward": [], "restore": [2.0]}
    for i in range(300):
        one.step(loader=0.5 + i / 1000, forward=1.0, samples=8)
        for name, seconds in (("step", 1.5 + i / 1000), ("loader", 0.5 + i / 1000), ("forward", 1.0)):
            lengths[name].append(seconds)
    for at in range(0, 300, 100):
        (answer,) = take(ingest, body_of(rank_report(one, rows=one.rows[at : at + 100], events=[])))
        assert not answer.rejected, answer
    path = tmp_path / "run.hlog"
    command = [sys.executable, "-m", "goodput", "export", "r1", "--ledger", url, "--hdr", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found: dict[str, HdrHistogram] = {}
    reader = HistogramLogReader(str(path), HdrHistogram(1, 65_520 * 10**9, 3))
    while (interval := reader.get_next_interval_histogram()) is not None:
        assert (interval.get_start_time_stamp() / 1000) % 60 == 0
        total = found.setdefault(interval.get_tag(), HdrHistogram(1, 65_520 * 10**9, 3))
        total.add(interval)
    reader.input_file.close()
    assert {tag: total.get_total_count() for tag, total in found.items()} == {
        tag: len(seconds) for tag, seconds in lengths.items()
    }
    for tag, seconds in lengths.items():
        median = sorted(seconds)[(len(seconds) + 1) // 2 - 1]
        assert found[tag].get_value_at_percentile(50) / 1e9 == pytest.approx(median, rel=2e-3)
    assert not list(tmp_path.glob("*.part"))
