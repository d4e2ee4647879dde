"""The agent knows what its devices reach from the kept probe, and reports it of each rank."""

import json
import os
from pathlib import Path

import pytest
from support.node.deep_looks import LOOK, SEEN
from support.node.late_pages import declare
from support.node.node_rank import Rank
from support.node.node_tree import MS

from goodput.probe.kept import POLL_SECONDS
from goodput.rank_page import deep_look
from goodput.wire import schema
from goodput_exporters.collector import Settings
from goodput_exporters.collectors.ranks.collector import Ranks
from goodput_exporters.collectors.ranks.reached_peaks import ReachedPeaks

DEVICE = "NVIDIA H100 80GB HBM3"


def write(path, device: str = DEVICE, **rates) -> None:
    figures = [
        {"name": name, "value": rate, "unit": "FLOP/s", "device": device} for name, rate in rates.items()
    ]
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps({"host": "n0", "figures": figures}))
    os.replace(draft, path)


def test_peaks_of_the_kept_probe(tmp_path):
    now_ns, path = 0, tmp_path / "n0.json"
    peaks = ReachedPeaks(str(path), lambda: now_ns)
    assert peaks.of(DEVICE, "bf16", 1) is None
    write(path, gemm_bf16=700e12, gemm_fp8=1400e12)
    assert peaks.of(DEVICE, "bf16", 1) is None, "looked at less than a minute ago"
    now_ns = POLL_SECONDS * 10**9
    assert peaks.of(DEVICE, "bf16", 8) == pytest.approx(5600e12)
    assert peaks.of(DEVICE, "bf16=0.5,fp8=0.5", 1) == pytest.approx(1 / (0.5 / 700e12 + 0.5 / 1400e12))
    assert (peaks.of("other", "bf16", 1), peaks.of(DEVICE, "fp16", 1), peaks.of(DEVICE, "", 1)) == (None,) * 3
    write(path, gemm_bf16=600e12)
    now_ns *= 2
    assert peaks.of(DEVICE, "bf16", 1) == pytest.approx(600e12)
    path.write_text("{")
    now_ns *= 2
    assert peaks.of(DEVICE, "bf16", 1) is None
    assert ReachedPeaks("", lambda: 0).of(DEVICE, "bf16", 1) is None


def test_bus_bandwidth_over_as_many_ranks_as_the_run(tmp_path):
    now_ns, path = POLL_SECONDS * 10**9, tmp_path / "n0.json"
    peaks = ReachedPeaks(str(path), lambda: now_ns)
    write(path, "8 ranks, nccl", all_reduce_1MiB=90e9, all_reduce_256MiB=360e9, gemm_bf16=1e15)
    assert [peaks.bus(ranks) for ranks in (1, 2, 8, 9)] == [None, 360e9, 360e9, None]
    write(path, "some ranks", all_reduce_256MiB=360e9)
    now_ns *= 2
    assert peaks.bus(2) is None


def test_reports_have_the_reached_peak(tmp_path):
    """Also of a device that is declared late, and of a probe that is made while the rank runs."""
    now_ns, path = 10**12, tmp_path / "n0.json"
    (tmp_path / "pages").mkdir()
    rank = Rank(tmp_path / "pages")
    ranks = Ranks(Settings(str(tmp_path / "pages"), probe=str(path), monotonic_ns=lambda: now_ns))
    declare(rank, device=DEVICE, dtype="bf16", devices=2)
    reported = []
    for rates in ({}, {"gemm_bf16": 700e12}):
        if rates:
            write(path, **rates)
        rank.step({"forward": MS})
        now_ns += (POLL_SECONDS + 1) * 10**9
        (report,) = ranks.poll()
        schema.check(report)
        reported.append(report.identity.reached_flops_per_second)
    assert reported == [None, pytest.approx(1400e12)]


def test_reports_have_the_copies_of_the_last_deep_look(tmp_path):
    """By hand: 2 MB in 100 us are 20 GB/s, of 50 GB/s of this device; then 3 MB in as long. A broken file changes nothing."""
    now_ns, path = 10**12, tmp_path / "n0.json"
    (tmp_path / "pages").mkdir()
    rank = Rank(tmp_path / "pages")
    write(path, h2d_pinned=50e9)
    ranks = Ranks(Settings(str(tmp_path / "pages"), probe=str(path), monotonic_ns=lambda: now_ns))
    reported = []
    for look in (None, 2_000_000, 3_000_000, "broken", "failed", "directory"):
        if isinstance(look, int):
            seen = {**SEEN, "device": DEVICE, "h2d_bytes": look, "h2d_ns": 100_000}
            deep_look.write(str(rank.path), {**LOOK, "seen": seen})
        elif look == "broken":
            Path(deep_look.path_of(str(rank.path))).write_text("{")
        elif look == "failed":
            deep_look.write(str(rank.path), {**LOOK, "seen": None})
        elif look == "directory":
            Path(deep_look.path_of(str(rank.path))).unlink()
            Path(deep_look.path_of(str(rank.path))).mkdir()
        rank.step({"forward": MS})
        now_ns += (POLL_SECONDS + 1) * 10**9
        (report,) = ranks.poll()
        schema.check(report)
        reported.append((report.identity.h2d_bytes_per_second, report.identity.reached_h2d_bytes_per_second))
    assert reported == [(None, None), (20e9, 50e9), *[(30e9, 50e9)] * 4]
