"""Series of the aggregator about itself."""

SERIES = """
goodput_aggregator_info{version}: Always 1; the aggregator's version as label.
goodput_aggregator_reports_total{outcome}: Node reports received, by outcome: accepted, malformed, failed (not
    stored).
goodput_aggregator_rank_rejections_total{reason}: Rank reports rejected, by reason.
goodput_aggregator_rows_total{kind}: Step and event rows received: new, or repeated by a retried push.
goodput_aggregator_clamped_total{what}: Values that contradicted others of the same rank and were reduced to
    fit.
goodput_aggregator_stacks_total{outcome}: Stack dumps received from agents: accepted, ignored (not requested).
goodput_aggregator_health_events_total{kind severity}: Hardware events received, each counted once; unknown
    kinds as other.
goodput_aggregator_stack_samples_dropped_total: Reports whose sampled stacks were not kept, since those of
    too many ranks are.
goodput_aggregator_health_dropped_total{reason}: Hardware events dropped: malformed, time (far in the future),
    full (memory limit; least severe first), scope (no affected run is covered by the token).
goodput_aggregator_ingest_seconds_total: Time spent processing reports.
goodput_aggregator_ledger_errors_total: Failed writes to the ledger.
goodput_aggregator_ledger_refused_rows_total{table}: Rows that are not in the ledger since the database refuses
    their values; all others are stored. The log names the run and the reason.
goodput_aggregator_ledger_bytes: Size of the ledger's database, with its free pages.
goodput_aggregator_ledger_blocks_compacted_total{how}: Step blocks merged with others, or thinned to minutes or
    hours.
goodput_aggregator_ledger_rows_thinned_total: Step rows for which the last of their minute or hour stands now.
goodput_aggregator_ledger_freed_bytes_total: Bytes of step blocks that compaction freed.
goodput_aggregator_ledger_runs_closed_total: Runs whose account was stored, so that their steps can be thinned.
goodput_aggregator_requests_total{route code}: Requests by route and status code; 499: the client disconnected
    before the answer.
histogram goodput_aggregator_request_seconds{route}: Request duration, from its headers to the end of the
    answer.
goodput_aggregator_requests_refused_total{reason}: Requests refused by a limit: body (size), large (takes too much of --memory at once),
    encoding, starting (reading the ledger), head (size), slow, busy, memory (--memory), host, origin, throttled, quota (more than its token may push),
    sessions, malformed.
goodput_aggregator_audit_dropped_total{kind}: Lines left out of the audit log: of refusals, repeated ones of an address
    in a minute included, and of other events.
goodput_aggregator_token_refusals_total{token bound}: Pushes refused because the token, which is for some runs, has
    used up its bytes, its CPU time (time), or the bytes of reports that may be in work at a time (held). By the token's name.
goodput_aggregator_auth_failures_total{reason}: Requests refused because the token or session is missing,
    malformed, unknown, expired, over (session) or of the wrong scope.
goodput_aggregator_tokens{scope}: Valid tokens by scope: ingest, read, metrics.
goodput_aggregator_token_expiry_timestamp_seconds: Unix time at which the next valid token expires; absent if
    none does.
goodput_aggregator_certificate_expiry_timestamp_seconds: Unix time at which the aggregator's certificate or
    one of its chain expires; absent without TLS.
goodput_aggregator_token_reload_errors_total: Changes of the token file that could not be loaded; the previous
    tokens stay valid.
goodput_aggregator_tls_reload_errors_total: Changes of the certificate or key that could not be loaded; the
    previous one stays in use.
goodput_aggregator_reload_failing{file}: 1 while the current tokens or certificate file cannot be loaded and
    the previous version is in use.
goodput_aggregator_sessions: Signed-in browser sessions.
goodput_aggregator_connections: Open connections.
goodput_aggregator_runs: Runs in memory.
goodput_aggregator_runs_stored: Runs that are in the ledger alone; they are read when asked for.
goodput_aggregator_runs_moved_total{why}: Runs that left memory for the ledger because they had ended, because a
    bound was full, for memory (--memory) or since damaged rows of theirs were set aside, and those that were loaded
    again.
goodput_aggregator_bound_used_ratio{bound}: Used share of each bound: runs and rank_processes in memory (at 1
    the oldest leave it), memory (--memory), connections, bodies (bytes of reports that are being received or worked on), sessions,
    health_events and stack_samples (beyond 1 the least important, or further ranks, are dropped), history_queries,
    named_phases (of the run that has named most phases; above 1 further ones have no series of their own),
    and of the token for some runs that uses most of its share token_runs, token_rank_processes, token_push_bytes and
    token_push_seconds (at 1 and above its pushes are refused).
goodput_aggregator_series{level}: Series of the aggregator's /metrics, by what there is one of: rank (slowest
    only), node (likewise), run, self.
goodput_aggregator_series_timestamp_seconds: Unix time at which all series of this text were computed, those
    of runs that changed perhaps later: for the age of what a large installation serves from memory.
goodput_run_series_timestamp_seconds{run}: Unix time at which the run's series of this text were computed: where there are
    many runs, or large ones, a scrape gets each as it was last.
goodput_aggregator_series_render_seconds: Duration of the last computation of all series, other requests in
    between included.
goodput_node_clock_offset_seconds{node}: How far the clock of a node that pushes is ahead of the aggregator's,
    negative where it is behind, estimated from its pushes, some milliseconds exact; the 1024 nodes that are off
    most. A node whose push may only have come late has none.
goodput_aggregator_clock_step_seconds: How far the aggregator's wall clock was set forward since its start,
    negative for back, while the clocks of the nodes do not confirm it; ages and statuses do not follow it.
goodput_aggregator_otlp_exports_total{outcome}: Exports to the OTLP receiver (--otlp) by outcome: accepted, refused
    (answered with an error or a redirect), unreachable (no answer in time), failed (the series could not be
    collected). Absent without --otlp.
goodput_aggregator_otlp_points_total{outcome}: Points exported by outcome: accepted, rejected (by a receiver that
    took the others), lost (with a request that failed; the next export has newer values).
goodput_aggregator_otlp_accepted_age_seconds: Time since the OTLP receiver last accepted all series, or since the
    start.
goodput_aggregator_stream_connected: 1 while the stream (--stream) answers, else 0; absent without one.
goodput_aggregator_stream_messages_total{outcome}: Parts of pushes sent to the stream: published, or failed (their agents
 push them again).
goodput_aggregator_stream_answers_dropped_total: Answers of aggregators to nodes that could not be read or were too many.
goodput_aggregator_stream_read_total{outcome}: Parts of pushes taken from the stream: read, malformed, failed for
 another reason than the ledger, or newer: left there for a later version of goodput.
goodput_aggregator_stream_pending_messages: Parts of pushes in the stream that this aggregator has not read yet.
goodput_aggregator_stream_delay_seconds: How long pushes take until the ledger has them, of the partition that is latest:
 age of the oldest one in work, else delay of the last one, 0 a minute after it.
goodput_aggregator_partitions: Partitions that this aggregator serves.
goodput_aggregator_partitions_unserved: Partitions for which this aggregator knows no owner.
goodput_aggregator_partition_takeovers_total: How often this aggregator took a partition.
goodput_aggregator_cpu_seconds_total: CPU time used by the aggregator.
goodput_aggregator_memory_bytes: Resident memory of the aggregator.
goodput_aggregator_memory_limit_bytes: The bound of its resident memory (--memory); absent without one.
goodput_aggregator_memory_freed_total{what}: What left memory because the bound was approached: step_rows, runs,
    results_of_queries.
"""
