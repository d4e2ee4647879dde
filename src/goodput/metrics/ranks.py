"""Series of the ranks on a node: what their pages say."""

from __future__ import annotations

from goodput.metrics.metric import declare

SERIES = declare(
    "node",
    [
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
        ("goodput_sdk_budget_ratio", "gauge", "ratio", "run rank",
         "What measuring may cost, as a share of step time; where instrumentation is automatic."),
        ("goodput_sdk_phases_every", "gauge", "", "run rank",
         "1 while phases are measured, in every step; 0 while the overhead budget has them off."),
        ("goodput_sdk_unmeasured_steps_total", "counter", "", "run rank",
         "Steps that were counted and timed without phases, which would have cost more than the overhead budget."),
        ("goodput_micro_batches_total", "counter", "", "run rank",
         "Backward passes, where instrumentation is automatic; more than one a step is gradient accumulation. Updated "
         "every 64 steps and at the end."),
        ("goodput_skipped_steps_total", "counter", "", "run rank",
         "Steps that mixed precision skipped, where instrumentation is automatic."),
        ("goodput_compilations_total", "counter", "", "run rank",
         "Compilations by torch.compile, where instrumentation is automatic."),
        ("goodput_sdk_dropped_total", "counter", "", "run rank what",
         "Records the SDK refused or lost: phase, step, event, background, error, claim, checkpoint."),
        # Inside the loader
        ("goodput_loader_batches_total", "counter", "", "run rank", "Batches that the step thread took from a DataLoader "
         "while phases were measured (goodput_sdk_phases_every is 1)."),
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
    ],
)  # fmt: skip
