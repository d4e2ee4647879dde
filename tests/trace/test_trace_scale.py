"""Memory and time do not grow beyond the bounds of `bench/analysis/analyze.py`, on traces small enough for a test."""

from bench.analysis.analyze import BYTES_PER_EVENT, MEMORY_MIB, time_one, write


def peak(path) -> tuple[int, float, str]:
    found = time_one("analyze", path)
    return found["events"], found["peak_mib"], found["device"]


def test_generated_trace_is_exact_within_the_memory_bound(tmp_path):
    path = tmp_path / "trace.json"
    written = write(path, 12)
    found = time_one("analyze", path)
    assert found["events"] == written
    assert found["peak_mib"] < MEMORY_MIB + BYTES_PER_EVENT * written / 2**20
    # The bar of 30 s for 200 MB is six times what a bare json.load takes; machines differ.
    assert found["cpu_seconds"] < 6 * time_one("bare", path)["cpu_seconds"]


def test_memory_per_cpu_event_is_bounded(tmp_path):
    """The dearest events: operators in random order that do not nest, all kept for their self time."""
    sizes = []
    for count in (40_000, 120_000):
        path = tmp_path / f"{count}.json"
        with open(path, "w") as file:
            file.write('{"traceEvents": [')
            for i in range(count):
                at = i * 7919 % count * 10
                file.write(
                    f'{{"ph": "X", "cat": "cpu_op", "name": "op{i % 99}", "pid": 1, "tid": {i % 3}, "ts": {at}, "dur": 4}},\n'
                )
            file.write(
                '{"ph": "X", "cat": "cpu_op", "name": "last", "pid": 1, "tid": 1, "ts": 0, "dur": 1}]}'
            )
        sizes.append(peak(path))
    (few, small, device), (many, large, _) = sizes
    assert device == "CPU" and (few, many) == (40_001, 120_001)
    assert (large - small) * 2**20 < BYTES_PER_EVENT * (many - few)


def test_nested_python_frames_take_no_memory(tmp_path):
    """A trace with stacks is mostly Python frames; only the outermost matters, in the order Kineto writes."""
    sizes = []
    for count in (40_000, 150_000):
        path = tmp_path / f"{count}.json"
        with open(path, "w") as file:
            file.write(
                '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 9},\n'
            )
            for i in range(count):
                file.write(
                    f'{{"ph": "X", "cat": "python_function", "name": "f", "pid": 1, "tid": 1, "ts": {i}, "dur": {count - i}}},\n'
                )
            file.write('{"ph": "X", "cat": "cpu_op", "name": "b", "pid": 1, "tid": 1, "ts": 9, "dur": 1}]}')
        sizes.append(peak(path))
    assert sizes[1][0] == 150_002
    assert sizes[1][1] - sizes[0][1] < 3
