"""The knee and the limit follow from where the time of a batch goes; by hand."""

import pytest
from support.installed import need

from goodput.probe.loader.limit import Point, binding, knee, saturation
from goodput.probe.loader.sweep import sweep
from goodput.probe.loader.text import render
from goodput.probe.loader.waits import kind_of


def queue(workers: int, own: float, serial: float, part: str) -> Point:
    """A closed queue: a batch takes `own` side by side and `serial` one at a time."""
    cycle = max(own + serial, workers * serial)
    parts = {"storage": own}
    parts[part] = parts.get(part, 0.0) + cycle - own
    return Point(workers, workers / cycle, 4.0, parts)


def copying(workers: int, own: float, copy: float) -> Point:
    """Workers that take `own` for a batch, and a main process that copies it."""
    return Point(workers, min(workers / own, 1 / copy), 4.0, {"cpu": own}, copy=copy, transfer=0.0)


@pytest.mark.parametrize("part", ["cpu", "storage", "lock", "collate"])
@pytest.mark.parametrize(
    "own, serial, workers", [(30, 10, 4), (45, 10, 6), (10, 40, 2), (0, 10, 1), (110, 10, 12)]
)
def test_knee_and_limit_of_a_queue(part, own, serial, workers):
    measured = []

    def measure(count: int) -> Point:
        measured.append(count)
        return queue(count, own / 1e3, serial / 1e3, part) if count else Point(0, 1e3 / (own + serial) * 0.9)

    points = sweep(measure, 32)
    assert (knee(points).workers, binding(points).name) == (workers, part)
    assert binding(points).saturated and len(measured) <= 20


def test_copy_of_the_main_process_limits():
    points = [copying(workers, 0.070, 0.020) for workers in (1, 2, 3, 4, 8)]
    assert (knee(points).workers, binding(points).name) == (4, "copy")
    assert saturation(points[0].rate, points[-1].rate) == pytest.approx(3.5)
    # 8 workers make a batch every 8.75 ms; each has 160 ms for one and needs 70.
    assert points[-1].idle == pytest.approx(0.090)


def test_receiving_limits_where_nothing_is_copied():
    points = [Point(n, min(n / 0.004, 500), 4.0, {"cpu": 0.004}, copy=0.0, transfer=0.002) for n in (1, 2, 4)]
    assert binding(points).name == "transfer"


def test_without_a_plateau_the_largest_part_is_named():
    points = [Point(n, n / 0.05, 4.0, {"storage": 0.01, "collate": 0.04}, {"cpu": 0.04}) for n in (1, 2, 4)]
    found = binding(points)
    assert (found.name, found.saturated, knee(points).workers) == ("collate", False, 4)
    assert "mostly computing" in found.text


@pytest.mark.parametrize(
    "line, kind",
    [
        ("running", "cpu"),
        ("-1 0x7ffc5a554228 0x7fd631c6f503", "storage"),  # a page fault
        ("0 0x3 0x7f16df068000 0x1000 0x0 0x0 0x0 0x7ffc 0x7fd6", "storage"),  # read
        ("202 0x7f16df068000 0x109 0x0 0x0 0x0 0xffffffff 0x7ffc 0x7f16", "lock"),  # futex
        ("73 0x4 0x2 0x0 0x0 0x0 0x0 0x7ffc 0x7f16", "lock"),  # flock
        ("72 0x4 0x7 0x7ffc 0x0 0x0 0x0 0x7ffc 0x7f16", "lock"),  # fcntl F_SETLKW
        ("72 0x4 0x3 0x0 0x0 0x0 0x0 0x7ffc 0x7f16", "storage"),  # fcntl F_GETFL
        ("230 0x1 0x1 0x7ffc 0x0 0x0 0x0 0x7ffc 0x7fd6", "sleep"),  # clock_nanosleep
        ("23 0x0 0x0 0x0 0x0 0x7ffc 0x0 0x7ffc 0x7fd6", "sleep"),  # select without descriptors
        ("232 0x5 0x7ffc 0x10 0xffffffff 0x0 0x0 0x7ffc 0x7fd6", "storage"),  # epoll_wait
        ("288 0x11 0x7f 0x7f 0x80000 0x0 0x0 0x7ffc 0x7fd6", "accept"),
        ("", "unknown"),
        ("what?", "unknown"),
    ],
)
def test_kind_of_a_wait(line, kind):
    assert kind_of(line, "x86_64") == kind
    assert kind_of("98 0x1 0x109", "aarch64") == "lock" and kind_of(line, "s390x") == "unknown"


PROBE = {
    "host": "n1",
    "figures": [
        {"name": "h2d_pinned", "value": value, "unit": "B/s", "device": "H100", "index": index}
        for index, value in enumerate((54e9, 55e9, 56e9))
    ],
}


def test_text_has_80_columns():
    need("torch")
    from goodput.probe.loader.probe import copied

    points = [queue(workers, 0.03, 0.01, "lock") for workers in (1, 2, 4, 8)]
    found = binding(points)
    document = {
        "dataset": "ImageFolder",
        "samples": 1_281_167,
        "batch_size": 256,
        "now": {"num_workers": 2, "pin_memory": False, "rate": points[1].rate},
        "workers": [
            {"workers": p.workers, "rate": p.rate, "samples_per_batch": 4.0, "parts": p.parts, "idle": p.idle}
            for p in points
        ],
        "knee": 4,
        "limit": {"name": found.name, "saturated": True, "text": found.text},
        "alone": {"loader": 100.0, "copy": 1234.5, "both": 99.0},
        "batch_sizes": [{"batch_size": n, "samples_per_second": 25.0 * n} for n in (128, 256, 512)],
        "copy": copied(154_000_000, 1e3 / 154 * 22.55, PROBE),
        "pinning": {"pinned": 99.0, "pageable": 80.0},
        "use": {"num_workers": 4, "pin_memory": True},
        "gain": 2.0,
        "notes": ["a note " * 20],
    }
    text = render(document)
    assert max(map(len, text.splitlines())) <= 80
    assert "use: num_workers=4, pin_memory=True, 2 times as fast as now with num_workers=2" in text
    assert "copy: 154 MB at 22.6 GB/s, 41% of what this node can do" in text
    assert "->      4         100         400        100%" in text
    assert "limit: lock; with 8 workers instead of 1 a batch takes a worker 40 ms longer" in text
