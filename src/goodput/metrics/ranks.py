"""Series of the ranks on a node, from their rank pages."""

SERIES = """
goodput_rank_info{run rank attempt host device gpu_uuid group stage}: Always 1 for each rank process on the
    node; labels to join on.
goodput_rank_alive{run rank}: 1 while the rank's process is alive.
goodput_rank_beat_age_seconds{run rank}: Time since the rank's last phase or step boundary.
goodput_rank_phase_age_seconds{run rank phase}: Time since the rank entered its current phase; one series per
    rank.
goodput_rank_step{run rank}: Index of the rank's last completed step.
goodput_steps_total{run rank}: Steps completed by this rank process.
goodput_samples_total{run rank}: Samples in the steps completed by this rank process.
goodput_phase_seconds_total{run rank phase clock}: Time the step thread spent in each phase, without nested
    phases; phase none is time outside all phases.
goodput_background_phase_seconds_total{run rank phase}: Time other threads spent in each phase; not part of
    the account.
goodput_collective_calls_total{run rank group operation}: Calls of an operation of a process group; read every 10
    seconds, as the next two. The 24 with most exposed time; the others are operation other with an empty group.
goodput_collective_bytes_total{run rank group operation}: This rank's part of their tensors.
goodput_collective_exposed_seconds_total{run rank group operation}: Time that the step thread spent in them, by the
    host's clock: a part of the phase communication.
histogram goodput_phase_duration_seconds{run rank phase}: Duration of each phase, without nested phases.
histogram goodput_step_duration_seconds{run rank}: Duration of completed steps.
goodput_rank_step_seconds{run rank q}: Quantile q (p50, p95, p99) of step duration over the rank's last 512
    steps of at most five minutes, exact; absent without steps.
goodput_rank_phase_seconds{run rank phase q}: The same of the time in a phase within a step, over the steps that
    have it, on the device's clock where there is one.
goodput_sdk_cost_seconds_total{run rank}: Time the SDK itself used in the trainer, as it measures.
goodput_sdk_budget_ratio{run rank}: Overhead budget of automatic instrumentation, as a share of step time.
goodput_sdk_phases_every{run rank}: 1 while phases are measured, in every step; 0 while the overhead budget
    has them off.
goodput_sdk_unmeasured_steps_total{run rank}: Steps that were counted and timed without phases, which would
    have cost more than the overhead budget.
goodput_micro_batches_total{run rank}: Backward passes, where instrumentation is automatic; more than one a
    step is gradient accumulation. Updated every 64 steps and at the end.
goodput_skipped_steps_total{run rank}: Optimizer steps skipped by mixed precision (automatic instrumentation).
goodput_compilations_total{run rank}: torch.compile compilations (automatic instrumentation).
goodput_sdk_dropped_total{run rank what}: Records the SDK rejected or lost: phase, step, event, background,
    error, claim, checkpoint.
# Inside the loader
goodput_loader_batches_total{run rank}: Batches that the step thread took from a DataLoader while phases were
    measured (goodput_sdk_phases_every is 1).
goodput_loader_ready_batches_total{run rank}: Ready batches at each request, summed; divided by
    goodput_loader_batches_total, the mean queue depth.
goodput_loader_starved_batches_total{run rank}: Batch requests that found no batch ready.
goodput_loader_wait_seconds_total{run rank reason}: Time the step thread waited for a batch, by what the
    worker was doing: storage (blocked on I/O), decode (CPU), collate, cpus (no free core), queue, startup,
    unknown.
goodput_loader_iterators_total{run rank}: DataLoader iterators created.
goodput_loader_iterator_seconds_total{run rank}: Time spent creating DataLoader iterators, which starts their
    workers.
goodput_loader_workers{run rank}: num_workers of the DataLoader with the most wait time; 0: batches are made
    in the training process.
goodput_loader_worker_seconds_total{run rank loader worker part}: Time of a DataLoader worker process: storage
    (blocked on I/O), decode (CPU), cpus (no free core), collate, idle, startup.
goodput_loader_worker_batches_total{run rank loader worker}: Batches made by a DataLoader worker.
goodput_loader_worker_waited_seconds_total{run rank loader worker}: Time the step thread waited for batches of
    this worker.
goodput_loader_workers_unmeasured_total{run rank}: DataLoader worker processes not measured: a rank page has
    room for 64.
# NCCL's profiler plugin
goodput_nccl_calls_total{run rank operation}: NCCL calls, by the profiler plugin (docs/nccl.md).
goodput_nccl_bytes_total{run rank operation}: Bytes of NCCL calls, this rank's part.
goodput_nccl_device_seconds_total{run rank operation}: Time of NCCL calls on the device, from the first channel's
    start to the last one's end; calls on several streams overlap.
goodput_nccl_network_bytes_total{run rank direction}: Bytes that NCCL's proxy sent or received for this rank.
goodput_nccl_network_wait_seconds_total{run rank direction reason}: Time NCCL's transfers waited for the gpu, the
    peer's buffer or the network, summed over transfers, which overlap.
goodput_nccl_dropped_total{run rank what}: NCCL calls of communicators beyond 128 (call), and events of calls and
    transfers no longer followed (event).
# Traced steps
goodput_deep_look_seconds{run rank kind}: Time of the last traced step by kind: compute, communication and
    copy (both exposed), loader, host and idle sum to the step; also communication_hidden, copy_hidden and
    kernel (all kernels).
goodput_deep_look_age_seconds{run rank}: Time since the end of the last traced step.
goodput_deep_look_h2d_bytes_per_second{run rank}: Bytes of the last traced step's copies from host memory to the
    device over their time; absent without copies whose size the trace has.
goodput_deep_look_h2d_reached_ratio{run rank}: The same over what `goodput probe` reached on this node with pinned
    memory (figure h2d_pinned); absent where that is not known.
goodput_deep_looks_total{run rank outcome}: Traced steps by outcome: done, skipped (the profiler was in use or
    the step aborted), failed.
goodput_deep_look_cost_seconds_total{run rank}: The part of goodput_sdk_cost_seconds_total spent on traced
    steps.
"""
