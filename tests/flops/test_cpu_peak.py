"""The CPU's peak is measured once for its machine, threads, dtype and library, and remembered."""

from types import SimpleNamespace

import pytest
from support.installed import need

from goodput.cli import report
from goodput.flops import cpu_peak


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cpu_peak, "SECONDS", 0.0)
    # Whatever else this machine does.
    monkeypatch.setattr(cpu_peak, "CPU_SHARE_LEAST", 0.0)
    return tmp_path / "goodput" / "cpu-peaks.json"


def test_best_of_the_first_probes_is_kept(cache, monkeypatch):
    torch = pytest.importorskip("torch")
    name = cpu_peak.device_name(1)
    assert cpu_peak.threads_of(name) == 1 and cpu_peak.known_peak(name, "fp32", torch.__version__) is None
    peak = cpu_peak.measured_peak(name, "fp32")
    assert peak is not None and 1e8 < peak < 1e14
    rates = iter([peak / 2, peak * 2])
    monkeypatch.setattr(cpu_peak, "_measure", lambda *_: next(rates))
    assert [cpu_peak.measured_peak(name, "fp32") for _ in range(3)] == [peak, 2 * peak, 2 * peak]
    peak *= 2
    assert cpu_peak.known_peak(name, "fp32", torch.__version__) == peak
    assert cpu_peak.known_peak(name, "fp32", "1.0") is cpu_peak.known_peak(name, "bf16", "1.0") is None


def test_busy_machine_has_no_peak(cache, monkeypatch):
    """During each product the process gets half of the CPU time that its threads could use."""
    need("torch")
    now = iter(range(10**9))
    monkeypatch.setattr(cpu_peak, "CPU_SHARE_LEAST", 0.9)
    monkeypatch.setattr(cpu_peak.time, "process_time_ns", lambda: next(now))
    monkeypatch.setattr(cpu_peak.time, "perf_counter_ns", lambda: 2 * next(now))
    assert cpu_peak.measured_peak(cpu_peak.device_name(1), "fp32") is None and not cache.exists()


def test_other_machines_and_dtypes_are_unknown():
    for device, dtype in (
        ("NVIDIA H100 80GB HBM3", "bf16"),
        ("a CPU elsewhere, 8 threads", "fp32"),
        (cpu_peak.device_name(1), "fp8"),
        (cpu_peak.device_name(1), "bf16=0.9,fp32=0.1"),
        ("", ""),
    ):
        assert cpu_peak.measured_peak(device, dtype) is None


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": "y"}', '{"x": [1e9, "y"]}'])
def test_unreadable_cache_is_empty(cache, text):
    cache.parent.mkdir()
    cache.write_text(text)
    assert cpu_peak.known_peak("x", "fp32", "2") is None


def test_report_measures_once_for_all_ranks(monkeypatch):
    """On a busy machine each attempt would otherwise take a second and find nothing."""
    measured = []
    monkeypatch.setattr(cpu_peak, "measured_peak", lambda *key: measured.append(key))
    attempts = {
        rank: SimpleNamespace(
            peak_flops_per_second=None, flops_per_step=1e9, device="CPU, 1 thread", dtype="fp32"
        )
        for rank in range(8)
    }
    report.measure_peaks([SimpleNamespace(attempts=attempts)])
    assert measured == [("CPU, 1 thread", "fp32")]
