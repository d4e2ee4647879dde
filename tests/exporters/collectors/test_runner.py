"""Running collectors: durations, failures, hangs that affect one collector only; and discovery."""

import threading
import time

import pytest
from support.node.node_tree import samples, wait_until

import goodput_exporters.collectors as collectors
from goodput.metrics import Families
from goodput_exporters.collector import CollectorError, NoData, Settings
from goodput_exporters.collector_runner import CollectorRunner, run_collectors
from goodput_exporters.collectors import discover
from goodput_exporters.system.files import read_text


class Scripted:
    """Adds one value, then calls a function."""

    name = "scripted"

    def __init__(self, then=lambda: None):
        self.then = then

    def collect(self, families) -> None:
        families.add("goodput_host_cpus", {}, 4)
        self.then()


def raising(error):
    def act():
        raise error

    return act


def scrape(runner: CollectorRunner, seconds: float = 5.0):
    """The result of a scrape of this runner alone; None without one."""
    found = run_collectors([runner], time.monotonic_ns() + int(seconds * 1e9))
    return found[0] if found else None


def described(runner: CollectorRunner) -> tuple[float, float]:
    families = Families("node")
    runner.describe(families)
    found = samples(families)
    assert found["goodput_node_collector_seconds", ("scripted",)] >= 0
    return tuple(found[f"goodput_node_collector_{name}", ("scripted",)] for name in ("up", "errors_total"))


def test_run_returns_added_series():
    runner = CollectorRunner(Scripted())
    assert samples(scrape(runner)) == {("goodput_host_cpus", ()): 4}
    assert described(runner) == (1, 0)


def test_no_data_is_not_an_error():
    runner = CollectorRunner(Scripted(raising(NoData("no such device"))))
    scrape(runner)
    assert described(runner) == (1, 0)


@pytest.mark.parametrize("error", [CollectorError("bad file"), RuntimeError("bug"), KeyError("undeclared")])
def test_failure_is_counted_and_logged_once(error, caplog):
    runner = CollectorRunner(Scripted(raising(error)))
    for _ in range(3):
        assert samples(scrape(runner)) == {("goodput_host_cpus", ()): 4}
    assert described(runner) == (0, 3)
    assert len(caplog.records) == 1
    runner.collector.then = lambda: None
    scrape(runner)
    assert described(runner) == (1, 3)


def test_hanging_collector_is_skipped_until_it_returns():
    release = threading.Event()
    runner = CollectorRunner(Scripted(release.wait))
    assert scrape(runner, seconds=0.05) is None
    assert described(runner) == (0, 1)
    began = time.monotonic()
    assert scrape(runner, seconds=30.0) is None  # not waited for again
    assert time.monotonic() - began < 30
    assert described(runner) == (0, 2)
    release.set()
    wait_until(lambda: not runner.is_busy)
    assert samples(scrape(runner)) == {("goodput_host_cpus", ()): 4}
    assert described(runner) == (1, 2)


def test_late_collector_serves_old_result_for_a_time(monkeypatch):
    release, runner = threading.Event(), CollectorRunner(Scripted())
    scrape(runner)
    runner.collector.then = release.wait
    for errors in (1, 2):
        assert samples(scrape(runner, seconds=0.03)) == {("goodput_host_cpus", ()): 4}
        assert described(runner) == (0, errors)
    monkeypatch.setattr("goodput_exporters.collector_runner.KEPT_SECONDS", 0.0)
    assert scrape(runner, seconds=0.03) is None
    monkeypatch.undo()
    assert scrape(runner, seconds=0.03) is None  # what was let go does not come back
    release.set()
    wait_until(lambda: not runner.is_busy)
    assert samples(scrape(runner)) == {("goodput_host_cpus", ()): 4}


def test_hanging_collectors_cost_one_thread_each():
    release = threading.Event()
    hanging = [CollectorRunner(Scripted(release.wait)) for _ in range(5)]
    runners = [*hanging, CollectorRunner(Scripted())]
    before = threading.active_count()
    try:
        for scrapes in (1, 2, 3):
            seconds = 2 if scrapes == 1 else 60
            found = run_collectors(runners, time.monotonic_ns() + int(seconds * 1e9))
            assert [samples(families) for families in found] == [{("goodput_host_cpus", ()): 4}]
            assert [described(runner) for runner in runners] == [(0, scrapes)] * 5 + [(1, 0)]
            assert threading.active_count() <= before + 5
            if scrapes == 1:
                # From here on nobody is waited for, but the one that works.
                began = time.monotonic()
        assert time.monotonic() - began < 60, "one that is waited for takes a minute"
    finally:
        release.set()


def test_unstarted_collectors_run_next_time():
    """With no time left at most the first is started."""
    runners = [CollectorRunner(Scripted()) for _ in range(3)]
    assert run_collectors(runners, time.monotonic_ns()) == []
    assert [described(runner) for runner in runners] == [(0, 1)] * 3
    assert len(run_collectors(runners, time.monotonic_ns() + int(5e9))) == 3
    assert [described(runner) for runner in runners] == [(1, 1)] * 3


def test_every_collector_folder_is_found():
    names = [kind(Settings(directory="")).name for kind in discover()]
    assert {"ethernet", "host", "ranks"} <= set(names) and names == sorted(names)


def test_broken_module_becomes_failing_collector(tmp_path, monkeypatch):
    for name, text in (("broken", "import no_such_module_anywhere\n"), ("empty", "X = 1\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "collector.py").write_text(text)
    monkeypatch.setattr(collectors, "__path__", [str(tmp_path)])
    found = {kind.name: kind(Settings(directory="")) for kind in discover()}
    assert set(found) == {"broken", "empty"}
    for name, problem in (("broken", "no_such_module_anywhere"), ("empty", "no class")):
        with pytest.raises(CollectorError, match=problem):
            found[name].collect(Families("node"))


def test_read_text_distinguishes_absent_and_unreadable(tmp_path):
    assert read_text(str(tmp_path / "none")) is None
    assert read_text(str(tmp_path / "none" / "below")) is None
    with pytest.raises(CollectorError, match="Is a directory"):
        read_text(str(tmp_path))
    (tmp_path / "file").write_bytes(b"a\xffb" * 100)
    assert read_text(str(tmp_path / "file"), bytes_max=3) == "a�b"
