"""Settings of all tests, and their order: files that take long begin first, so that none is left over at the end."""

import gc
import logging
import os
import signal
import tempfile

import pytest
import yaml
from support import forks, hypothesis_profiles

# Files that take over a quarter of a minute with all tests running, the longest first; then those of the tests alone.
LONG = (
    "test_programs.py",
    "test_replay_worlds.py",
    "test_dashboards_readable.py",
    "test_same_weights.py",
    "test_ledger_migrations.py",
    "test_command.py",
    "test_dashboards_rules.py",
    "test_demo_run.py",
    "test_replicated.py",
    "test_page_person.py",
    "test_infiniband.py",
    "test_hang.py",
    "test_model_metadata.py",
    "test_live.py",
    "test_hour.py",
    "test_deploy_kubernetes.py",
    "test_dashboards_servers.py",
    "test_page_figures.py",
    "test_single_file.py",
    "test_stack.py",
    "test_export.py",
    "test_history.py",
    "test_loop_variants.py",
    "test_patch_restore.py",
    "test_page.py",
    "test_up.py",
    "test_ledger_postgresql.py",
    "test_run_suite.py",
    "test_crash.py",
    "test_api.py",
    "test_start.py",
    "test_secured_stack.py",
    "test_runlog_order.py",
    "test_architecture.py",
    "test_serve_killed.py",
    "test_dashboards_render.py",
    "test_tracebacks.py",
    "test_ledger_command.py",
    "test_blocks_of_lines.py",
    "test_page_reader.py",
    "test_node_hardware.py",
    "test_report_versions.py",
    "test_supervisor.py",
    "test_page_opened_once.py",
    "test_counters.py",
    "test_runlog_oracle.py",
    "test_stack_samples.py",
    "test_amd.py",
    "test_snapshots.py",
    "test_ledger.py",
    "test_run.py",
    "test_runlog_hostile.py",
    "test_compaction.py",
    "test_overhead_budget.py",
    "test_token_budgets.py",
    "test_allreduce.py",
    "test_estimated_loader.py",
    "test_ledger_failures.py",
    "test_trace_scale.py",
    "test_account_peak_throughput.py",
    "test_runlog_scale.py",
    "test_link_monitor.py",
    "test_report.py",
    "test_ledger_reading.py",
    "test_phases.py",
    "test_trace_oracle.py",
    "test_deploy_ended_jobs.py",
    "test_trace_torch.py",
    "test_cluster.py",
    "test_rank_programs.py",
    "test_trainers.py",
    "test_distributed_checkpoint.py",
    "test_loader_wait_reasons.py",
    "test_loader_waits.py",
    "test_planted_delays.py",
    "test_torchrun_restart.py",
    "test_deep_look.py",
    "test_collective_waits.py",
    "test_slow_loader_rank.py",
)

# PyYAML's parser in C reads the alerts and boards in a tenth of the time.
yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Prometheus, promtool and Alertmanager take up to half of their CPU time for collections of small heaps.
os.environ.setdefault("GOGC", "800")
# Commands keep no runs in the home of who tests; tests of kept runs name a folder.
os.environ.setdefault("GOODPUT_RUNS", "0")
# A job in the background of a script ignores interrupts, and what it starts would too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
hypothesis_profiles.load(os.environ.get("GOODPUT_TEST_PROFILE", "suite"))


def pytest_configure(config) -> None:
    """Make the folder of the servers that fork, which the workers of a test run share."""
    if forks.FOLDER not in os.environ:
        made = tempfile.TemporaryDirectory(prefix="goodput-forks-")
        config.add_cleanup(made.cleanup)
        config.add_cleanup(lambda: os.environ.pop(forks.FOLDER))
        os.environ[forks.FOLDER] = made.name


def pytest_collection() -> None:
    """Collect no garbage while thousands of tests are made: nearly all of it stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Collections of the tests do not look at the tests and at what was imported for them, and come more rarely."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 20)
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def few_objects_to_collect() -> None:
    """Nor at what the tests of other files left, such as PyTorch: each would take half a second of CPU time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_log_lines_of_libraries() -> None:
    """A command or a library in the process of the tests may have made the root logger talk; tests count log lines."""
    logging.root.setLevel(logging.WARNING)


def pytest_collection_modifyitems(items) -> None:
    """Within a file the order stays; xdist gives files out in this order with --no-loadscope-reorder."""
    place = {name: at for at, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONG)))


def pytest_ignore_collect(collection_path, config) -> bool | None:
    """With `-m alone`, import only files that have such tests."""
    if config.option.markexpr == "alone" and collection_path.suffix == ".py":
        return "mark.alone" not in collection_path.read_text(encoding="utf-8") or None
    return None
