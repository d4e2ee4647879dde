"""The catalogue: every series that goodput exposes, with its type, unit, labels and help.

In: nothing. Out: `families`, which the node agent and the aggregator fill and prometheus_client writes out;
the dashboards and rules are checked against the same list. A series that is not declared here cannot be
exposed: filling it raises KeyError, in a test, not at a user's.

    board = Families("node"); board.add("goodput_steps_total", {"run": "r1", "rank": "0"}, 42)
    for family in board: ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Metric(NamedTuple):
    """One series: `exposer` is node or aggregator; `unit` is for people and dashboards."""

    name: str
    kind: str
    unit: str
    labels: tuple[str, ...]
    help: str
    exposer: str


def _declare(exposer: str, rows: list[tuple]) -> list[Metric]:
    return [
        Metric(name, kind, unit, tuple(labels.split()), text, exposer)
        for name, kind, unit, labels, text in rows
    ]


_NODE = _declare(
    "node",
    [
        # Ranks
        ("goodput_rank_info", "gauge", "", "run rank attempt host device gpu_uuid group stage",
         "1 for each rank process on the node, with the labels to join on."),
        ("goodput_rank_alive", "gauge", "bool", "run rank", "1 while the rank's process lives."),
        ("goodput_rank_beat_age_seconds", "gauge", "seconds", "run rank",
         "Time since the rank's last phase or step boundary."),
        ("goodput_rank_phase_age_seconds", "gauge", "seconds", "run rank phase",
         "Time in the phase that the rank is in now; one series per rank."),
        ("goodput_rank_step", "gauge", "", "run rank", "Index of the rank's last completed step."),
        ("goodput_steps_total", "counter", "", "run rank", "Steps completed by this rank process."),
        ("goodput_samples_total", "counter", "", "run rank", "Samples in the steps completed by this rank process."),
        ("goodput_phase_seconds_total", "counter", "seconds", "run rank phase clock",
         "Time of the step thread in each phase, exclusive of nested phases; phase none is time in no phase."),
        ("goodput_background_phase_seconds_total", "counter", "seconds", "run rank phase",
         "Time of other threads in each phase; not part of the account."),
        ("goodput_phase_duration_seconds", "histogram", "seconds", "run rank phase",
         "Length of each phase, exclusive of nested phases."),
        ("goodput_step_duration_seconds", "histogram", "seconds", "run rank", "Length of each completed step."),
        ("goodput_sdk_cost_seconds_total", "counter", "seconds", "run rank",
         "Time that the SDK itself has used in the trainer, by its own measure."),
        ("goodput_sdk_phases_every", "gauge", "", "run rank",
         "The overhead budget has one step in so many measured by phases; 1 measures all."),
        ("goodput_sdk_unmeasured_steps_total", "counter", "", "run rank",
         "Steps of which the overhead budget had only the length measured; their phases are estimated."),
        ("goodput_micro_batches_total", "counter", "", "run rank",
         "Backward passes, where instrumentation is automatic; more than one a step is gradient accumulation."),
        ("goodput_skipped_steps_total", "counter", "", "run rank",
         "Steps that mixed precision skipped, where instrumentation is automatic."),
        ("goodput_compilations_total", "counter", "", "run rank",
         "Compilations by torch.compile, where instrumentation is automatic."),
        ("goodput_sdk_dropped_total", "counter", "", "run rank what",
         "Records the SDK refused or lost: phase, step, event, background, error, claim, checkpoint."),
        # Inside the loader
        ("goodput_loader_batches_total", "counter", "", "run rank", "Batches that the step thread took from a DataLoader."),
        ("goodput_loader_ready_batches_total", "counter", "", "run rank",
         "Batches that lay ready when one was asked for, summed; over goodput_loader_batches_total the mean queue depth."),
        ("goodput_loader_starved_batches_total", "counter", "", "run rank",
         "Batches that were asked for while none of the workers' lay ready."),
        ("goodput_loader_wait_seconds_total", "counter", "seconds", "run rank reason",
         "Time the step thread waited for a batch, by what its worker did meanwhile: storage (blocked), decode (CPU), "
         "collate, cpus (no core was free), queue, startup, unknown."),
        ("goodput_loader_iterators_total", "counter", "", "run rank", "Times an iterator of a DataLoader was made."),
        ("goodput_loader_iterator_seconds_total", "counter", "seconds", "run rank",
         "Time spent on making iterators, which starts their workers."),
        ("goodput_loader_workers", "gauge", "", "run rank",
         "num_workers of the DataLoader that was waited for most; 0 is the training process itself."),
        ("goodput_loader_worker_seconds_total", "counter", "seconds", "run rank loader worker part",
         "Time of a loader's worker process: storage (blocked), decode (CPU), cpus (no core was free), collate, idle, startup."),
        ("goodput_loader_worker_batches_total", "counter", "", "run rank loader worker", "Batches a worker has made."),
        ("goodput_loader_worker_waited_seconds_total", "counter", "seconds", "run rank loader worker",
         "Time the step thread waited for a batch of this worker."),
        ("goodput_loader_workers_unmeasured_total", "counter", "", "run rank",
         "Worker processes that are not measured, beyond the 64 for which a rank page has room."),
        # Deep looks
        ("goodput_deep_look_seconds", "gauge", "seconds", "run rank kind",
         "Where the time of the last traced step went: compute, communication and copy (both exposed), loader, host, idle, "
         "which sum to the step; beside them communication_hidden, copy_hidden, kernel (of any kind)."),
        ("goodput_deep_look_age_seconds", "gauge", "seconds", "run rank", "Time since the end of the last traced step."),
        ("goodput_deep_looks_total", "counter", "", "run rank outcome",
         "Deep looks that were due: done, skipped (the profiler was in use, the step was left), failed."),
        ("goodput_deep_look_cost_seconds_total", "counter", "seconds", "run rank",
         "Part of goodput_sdk_cost_seconds_total that is of deep looks."),
        # The agent itself
        ("goodput_node_info", "gauge", "", "host version", "1, with the agent's version."),
        ("goodput_node_pages", "gauge", "", "state", "Rank pages found at the last look: live, dead, rejected."),
        ("goodput_node_page_errors_total", "counter", "", "reason", "Looks at a page that gave an error, by reason."),
        ("goodput_node_collector_up", "gauge", "bool", "collector",
         "1 if the collector's last run worked or had nothing to collect, 0 if it failed."),
        ("goodput_node_collector_seconds", "gauge", "seconds", "collector", "How long the collector's last run took."),
        ("goodput_node_collector_errors_total", "counter", "", "collector", "Runs of the collector that failed."),
        ("goodput_node_pushes_total", "counter", "", "outcome",
         "Reports to the aggregator by outcome: accepted, rejected, unreachable."),
        ("goodput_node_push_rejections_total", "counter", "", "reason",
         "Rank reports that the aggregator refused, by reason."),
        ("goodput_node_backlog_rows", "gauge", "", "", "Step rows waiting for the aggregator's acknowledgement."),
        ("goodput_node_rows_thinned_total", "counter", "", "",
         "Step rows merged into later ones to keep the backlog bounded; their time is not lost."),
        ("goodput_node_stacks_total", "counter", "", "outcome",
         "Stacks of ranks that the aggregator asked for, where that is allowed: taken, failed, ignored."),
        ("goodput_node_cpu_seconds_total", "counter", "seconds", "", "CPU time of the agent itself."),
        ("goodput_node_memory_bytes", "gauge", "bytes", "", "Resident memory of the agent itself."),
        # The host
        ("goodput_host_cpu_seconds_total", "counter", "seconds", "mode", "CPU time of the host by mode."),
        ("goodput_host_cpus", "gauge", "", "", "Processors that are on line."),
        ("goodput_host_load1_ratio", "gauge", "", "", "One-minute load average per processor."),
        ("goodput_host_memory_bytes", "gauge", "bytes", "kind", "Host memory: total, available, cached, dirty."),
        ("goodput_host_pressure_seconds_total", "counter", "seconds", "resource kind",
         "Time in which some or all (full) tasks waited for cpu, memory or io (PSI)."),
        ("goodput_host_disk_bytes_total", "counter", "bytes", "device direction", "Bytes read from and written to a disk."),
        ("goodput_host_disk_busy_seconds_total", "counter", "seconds", "device", "Time in which the disk had requests."),
        ("goodput_host_tcp_retransmits_total", "counter", "", "", "TCP segments sent again."),
        ("goodput_network_bytes_total", "counter", "bytes", "device direction", "Bytes through a network interface."),
        ("goodput_network_packets_total", "counter", "", "device direction", "Packets through a network interface."),
        ("goodput_network_errors_total", "counter", "", "device direction", "Errors of a network interface."),
        ("goodput_network_drops_total", "counter", "", "device direction", "Packets dropped by a network interface."),
        ("goodput_network_speed_bytes_per_second", "gauge", "bytes per second", "device",
         "Line rate of a network interface, where known."),
        ("goodput_network_up", "gauge", "bool", "device", "1 if the interface has carrier."),
        ("goodput_network_carrier_changes_total", "counter", "", "device", "Times the link went up or down."),
    ],
)  # fmt: skip

_AGGREGATOR = _declare(
    "aggregator",
    [
        # Runs
        ("goodput_run_info", "gauge", "", "run device status", "1 for each run; status is running, down, unobserved, finished."),
        ("goodput_gpu_seconds", "gauge", "seconds", "run state",
         "The account: GPU-seconds of the run in each state, since its start. A gauge, since work can become lost."),
        ("goodput_cost_dollars", "gauge", "dollars", "run state", "The account in money, where a GPU-hour has a price."),
        ("goodput_availability_ratio", "gauge", "ratio", "run", "Time in kept steps over allocated time."),
        ("goodput_step_efficiency_ratio", "gauge", "ratio", "run", "Productive time over time in kept steps."),
        ("goodput_goodput_ratio", "gauge", "ratio", "run", "Productive time over allocated time, since the run's start."),
        ("goodput_compute_efficiency_ratio", "gauge", "ratio", "run",
         "Model FLOPs of kept steps over peak times productive time; absent when unknown."),
        ("goodput_mfu_ratio", "gauge", "ratio", "run",
         "Model FLOPs of kept steps over peak times allocated time; absent when unknown."),
        ("goodput_hfu_ratio", "gauge", "ratio", "run", "As MFU, with recomputed FLOPs counted; absent when unknown."),
        ("goodput_input_errors", "gauge", "", "run",
         "Inputs that cannot be right, such as FLOPs that make an MFU above 100 %; 0 when none is known."),
        ("goodput_coverage_ratio", "gauge", "ratio", "run", "GPU time that was observed over GPU time expected."),
        ("goodput_ranks", "gauge", "", "run kind", "Ranks expected, observed (ever) and alive (now)."),
        ("goodput_rank_last_report_age_seconds", "gauge", "seconds", "run",
         "Age of the oldest last report among the run's ranks that should be alive."),
        ("goodput_steps", "gauge", "", "run kind", "Steps of all ranks that are kept, and that were lost."),
        ("goodput_run_samples", "gauge", "", "run kind", "Samples (or tokens) in the steps that are kept, and that were lost."),
        ("goodput_throughput_goodput_ratio", "gauge", "ratio", "run",
         "Kept samples over those of the ideal rate, given or best shown, in the same wall time; absent when unknown."),
        ("goodput_pipeline_bubble_ratio", "gauge", "ratio", "run kind",
         "Part of kept steps spent waiting for other pipeline stages: measured, and ideal, which cannot be avoided."),
        ("goodput_checkpoint_save_seconds", "gauge", "seconds", "run", "Time to save one checkpoint; absent when unknown."),
        ("goodput_checkpoint_best_interval_seconds", "gauge", "seconds", "run",
         "Estimate of the best time between checkpoints, given save time and failures seen; absent when unknown."),
        ("goodput_energy_joules", "gauge", "joules", "run state",
         "The account in energy, estimated from the mean power of a GPU, where that was told."),
        ("goodput_restarts", "gauge", "", "run", "Times the run was started again."),
        ("goodput_progress_age_seconds", "gauge", "seconds", "run", "Time since any rank of the run completed a step."),
        ("goodput_stall_threshold_seconds", "gauge", "seconds", "run", "No progress for longer than this is a stall."),
        ("goodput_hang_seconds", "gauge", "seconds", "run",
         "How long no rank has completed a step, once that is a hang; 0 while it is none."),
        ("goodput_hang_culprit_seconds", "gauge", "seconds", "run rank host phase",
         "How long the rank that a hang is blamed on has been in the phase it is in; absent when none or undecided."),
        ("goodput_straggler_slowdown_ratio", "gauge", "ratio", "run",
         "Step time over step time had each step's work been spread evenly over its ranks."),
        ("goodput_straggler_share_ratio", "gauge", "ratio", "run rank host",
         "Share of the straggler time that waiting for this rank explains; the largest 16."),
        ("goodput_straggler_host_share_ratio", "gauge", "ratio", "run host",
         "Share of the straggler time that waiting for ranks on this host explains; the largest 16."),
        ("goodput_cause_gain_ratio", "gauge", "ratio", "run state", "How much faster the run would be without this cause."),
        # The aggregator itself
        ("goodput_aggregator_info", "gauge", "", "version", "1, with the aggregator's version."),
        ("goodput_aggregator_reports_total", "counter", "", "outcome", "Reports received: accepted, malformed, failed."),
        ("goodput_aggregator_rank_rejections_total", "counter", "", "reason", "Rank reports refused, by reason."),
        ("goodput_aggregator_rows_total", "counter", "", "kind", "Step and event rows received: new, repeated."),
        ("goodput_aggregator_clamped_total", "counter", "", "what",
         "Values that contradicted others of their rank and were cut to fit."),
        ("goodput_aggregator_stacks_total", "counter", "", "outcome",
         "Stacks that agents brought: accepted, ignored (nobody had asked for them)."),
        ("goodput_aggregator_ingest_seconds_total", "counter", "seconds", "", "Time spent on taking reports."),
        ("goodput_aggregator_ledger_errors_total", "counter", "", "", "Failed writes to the ledger."),
        ("goodput_aggregator_runs", "gauge", "", "", "Runs in memory."),
        ("goodput_aggregator_cpu_seconds_total", "counter", "seconds", "", "CPU time of the aggregator."),
        ("goodput_aggregator_memory_bytes", "gauge", "bytes", "", "Resident memory of the aggregator."),
    ],
)  # fmt: skip

CATALOGUE: dict[str, Metric] = {metric.name: metric for metric in (*_NODE, *_AGGREGATOR)}


class Families:
    """Metric families of one exposer, filled value by value, in catalogue order."""

    def __init__(self, exposer: str):
        self._exposer = exposer
        self._families: dict[str, object] = {}

    def add(self, name: str, labels: dict[str, str], value: float) -> None:
        """Add one value. Raises KeyError for an undeclared series or label set."""
        metric = self._metric(name, labels)
        self._family(metric).add_metric([labels[label] for label in metric.labels], value)

    def add_histogram(
        self, name: str, labels: dict[str, str], buckets: list[tuple[str, int]], total: float
    ) -> None:
        """Add one histogram: cumulative (le, count) with +Inf last, and the sum of what was observed."""
        metric = self._metric(name, labels)
        self._family(metric).add_metric([labels[label] for label in metric.labels], buckets, sum_value=total)

    def __iter__(self) -> Iterator:
        return iter([self._families[name] for name in CATALOGUE if name in self._families])

    def _metric(self, name: str, labels: dict[str, str]) -> Metric:
        metric = CATALOGUE[name]
        if metric.exposer != self._exposer or set(labels) != set(metric.labels):
            raise KeyError(
                f"{name}: {self._exposer} exposes it with labels {sorted(labels)}, declared {metric}"
            )
        return metric

    def _family(self, metric: Metric):
        if metric.name not in self._families:
            from prometheus_client import core

            kind = {
                "gauge": core.GaugeMetricFamily,
                "counter": core.CounterMetricFamily,
                "histogram": core.HistogramMetricFamily,
            }[metric.kind]
            self._families[metric.name] = kind(metric.name, metric.help, labels=metric.labels)
        return self._families[metric.name]
