"""Series of the aggregator about runs: the account and figures derived from it."""

SERIES = """
goodput_run_info{run device status}: Always 1 for each run; status is running, unobserved, finished, failed,
    cancelled or abandoned (no sign of life for a day).
goodput_gpu_seconds{run state}: The account: GPU-seconds of the run in each state since its start. A gauge,
    because work can become lost later.
goodput_role_gpu_seconds{run role state}: The account of each role (trainer, generator) of a run that has several,
    like goodput_gpu_seconds; the 8 roles with the most GPU time.
goodput_communication_gpu_seconds{run group operation}: Exposed communication by process group and operation;
    the sum is the states communication, straggler and bubble. The 16 largest, group empty for the rest: operation other,
    or empty for what no record explains. Absent where calls wait on the device and nobody has measured for how long.
goodput_communication_part_gpu_seconds{run group operation part}: The same by what it was: skew (waiting for the last rank
    to arrive), transfer (what all ranks paid; of a pipeline with its bubble), unknown.
goodput_communication_hidden_gpu_seconds{run group operation bound}: Time in which calls of the operation were under way and
    training did not wait, at least (low) and at most (high); absent where that is not known.
goodput_communication_bus_bytes_per_second{run group operation}: What the links of a rank carried at most in this operation,
    as the bus bandwidth of nccl-tests; absent where the group's size is not known.
goodput_communication_bus_min_bytes_per_second{run group operation}: The same, what they carried at least, by the time of the
    calls on the device; absent without the device times of NCCL's profiler plugin.
goodput_communication_bus_ceiling_bytes_per_second{run group operation source}: What the links reach at most in it, by
    source: probe (measured by `goodput probe`), link (the nominal rate of the nodes' links); absent where not known.
goodput_cost_dollars{run state}: The account in dollars; absent without a price per GPU-hour.
goodput_run_gpus{run}: GPUs currently allocated to the run, observed or not; absent once it is over, of one that failed after
    a quarter of an hour, since it may be restarted.
goodput_run_reported_gpus{run}: GPUs of the run's expected ranks that have ever reported; the rules count no more GPU
    time of it for the cluster than these have.
goodput_availability_ratio{run}: Availability: time in kept steps / allocated time.
goodput_step_efficiency_ratio{run}: Step efficiency: productive time / time in kept steps.
goodput_goodput_ratio{run}: Goodput: productive time / allocated time, since the run's start.
goodput_compute_efficiency_ratio{run}: Model FLOPs of kept steps / (peak FLOP/s x productive time); absent
    when unknown.
goodput_mfu_ratio{run}: Model FLOPs of kept steps / (peak FLOP/s x allocated time); absent when unknown.
goodput_hfu_ratio{run}: MFU with recomputed FLOPs included; absent when unknown.
goodput_input_errors{run}: Implausible inputs, such as FLOPs that give an MFU above 100 %.
goodput_coverage_ratio{run}: Observed GPU time / expected GPU time.
goodput_ranks{run kind}: Ranks of the run: expected, observed (ever) and alive (now).
goodput_rank_last_report_age_seconds{run}: Age of the oldest last report among ranks that should be alive.
goodput_rank_missing_seconds{run rank host}: Time since the last report of a rank that should be alive, or, without a
    host, since the start of a run of which the rank never reported; of at most 5 ranks, from a minute on.
goodput_steps{run kind}: Steps of all ranks: kept, and lost to restarts.
goodput_run_samples{run kind}: Samples (or tokens) of kept steps, and of lost ones.
goodput_throughput_goodput_ratio{run}: Kept samples / samples at the ideal rate (declared, or the best
    observed) in the same wall time; absent when unknown.
goodput_pipeline_bubble_ratio{run kind}: Share of kept steps spent waiting for other pipeline stages:
    measured, and ideal (unavoidable).
goodput_pipeline_wait_seconds{run stage operation per}: How long a rank of a stage waits in its sends or receives, in the
    mean of kept steps, per step and per microbatch; absent where no sends and receives are recorded.
goodput_checkpoint_save_seconds{run}: Time to save one checkpoint; absent when unknown.
goodput_checkpoint_best_interval_seconds{run}: Estimated optimal checkpoint interval, given the save time and
    observed failures; absent when unknown.
goodput_checkpoint_age_seconds{run}: Time since the last committed checkpoint; absent if none was reported,
    and once the run is finished.
goodput_checkpoint_interval_seconds{run}: Median time between the last 32 checkpoint commits; absent before
    the second.
goodput_checkpoint_last_save_seconds{run}: Duration of the newest checkpoint, begin to commit of its slowest
    part; absent if its begin was not reported.
goodput_energy_joules{run state}: The account in joules, measured or estimated from mean GPU power; absent
    when unknown.
goodput_restarts{run}: Restarts of the run.
goodput_restart_timestamp_seconds{run attempt}: Unix time at which the attempt began, by its host's clock;
    newest 16 restarts.
goodput_restart_lost_gpu_seconds{run attempt}: GPU-seconds of work lost to the restart and redone; newest 16.
goodput_restart_down_seconds{run attempt}: Downtime before the restart, mean over GPUs; newest 16.
goodput_run_step_seconds{run q}: Quantile q (p50, p95, p99) of step duration over the last four to five
    minutes, all ranks together, exact to 0.05 %; absent without steps.
goodput_run_phase_seconds{run phase q}: The same of the time in a phase within a step, over the steps that have
    it, on the device's clock where there is one.
histogram goodput_run_step_duration_seconds{run}: Duration of the steps pushed to this aggregator, all ranks
    together; ten buckets to a factor of ten.
histogram goodput_run_phase_duration_seconds{run phase}: The same of the time in a phase within a step, over the
    steps that have it; count and sum, and in protobuf a native histogram.
goodput_progress_age_seconds{run}: Time since any rank of the run completed a step.
goodput_stall_threshold_seconds{run}: A run without progress for longer than this is stalled.
goodput_hang_seconds{run}: Time since any rank completed a step while the run hangs; 0 otherwise.
goodput_hang_culprit_seconds{run rank host phase}: Time the rank that causes the hang has spent in its current
    phase; absent without a hang or a clear culprit.
goodput_hang_collective_seconds{run kind operation group}: Time ranks have waited in the collective in which the
    run hangs; `kind` is what is wrong with it (missing, operation, size, ..., docs/collectives.md). Absent without
    a hang, or where nothing is known of it.
goodput_hang_link_timestamp_seconds{run host device kind}: Unix time when an agent reported this of a link (`kind` as of
    its health event), of the few worst links of the nodes of a run that hangs in the network. Absent otherwise.
goodput_straggler_slowdown_ratio{run}: Step time / step time with each step's work spread evenly over its
    ranks.
goodput_straggler_slow_issue_seconds{run rank host group operation of}: How long the calls of a rank take to return, per
    step, of the rank for which all others wait in this way, and of its peers; absent where there is none.
goodput_straggler_slow_link_bytes_per_second{run rank host address of}: What the slow link of this rank carries while it has
    data to send (link), and what other links do (others), by the TCP connections between the run's ranks; absent without
    one, and in runs of which more than 1024 ranks wait for TCP.
goodput_straggler_share_ratio{run rank host}: Share of straggler time spent waiting for this rank; largest 16.
goodput_straggler_host_share_ratio{run host}: Share of straggler time spent waiting for ranks on this host;
    largest 16.
goodput_straggler_culprit_slowness_ratio{run rank host phase}: Own time per step over the median of its peers, of
    the rank that the account's rule names over the last 10 to 15 minutes, and the phase in which it exceeds them
    most, if phases were measured; absent if it names none.
goodput_straggler_stage_slowness_ratio{run stage phase}: The same for a pipeline stage with more work than the
    others.
goodput_run_health_events{run kind severity}: Hardware events that affected the run.
goodput_run_health_cost_gpu_seconds{run kind}: GPU-seconds of restarts attributed to hardware events of this
    kind; absent if there are none.
goodput_run_event_timestamp_seconds{run kind title cost claims}: Unix time at which something happened to the
    run, as its story has it: what, its GPU-hours and dollars, and each claim with its basis (measured, estimated,
    coincident); the 16 costliest that are over, updated every few minutes.
goodput_cause_gain_ratio{run state}: Speed-up of the run if this cause were removed: by replay of its newest steps, or
    1 / (1 - share), which is too little where other ranks wait for those in this state.
goodput_cause_gain_bound_ratio{run state bound}: The bounds low and high of the 95 % interval of a speed-up by replay;
    absent for one by share.
goodput_cause_order{run state}: Place of the cause in the order in which to act, from 1: causes that recur with the
    steps before those that are paid once.
"""
