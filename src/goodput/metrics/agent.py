"""Series of the node agent about itself: rank pages, collectors, pushes, events and cost."""

SERIES = """
goodput_node_info{host version}: Always 1; the agent's host and version as labels.
goodput_node_pages{state}: Rank pages in the directory by state: live, dead, rejected (malformed),
    refused (beyond a bound).
goodput_node_page_errors_total{reason}: Failed reads of rank pages, by reason; once a poll for each page that
    is refused: user (more than one user may have), excess (more than the agent follows),
    identity also a copy of a page; and once a page, owner (it names another user's run).
goodput_node_page_directory_problem{problem}: 1 if the folder of rank pages, where any user may write, lacks this:
    mount (is no mount of its own), size or inodes (has no bound on them); else 0.
goodput_node_connection_reads_total{outcome}: Ranks that waited for communication and whose TCP connections
    were read (every 10 s) or could not be (failed).
goodput_node_collector_up{collector}: 1 if the collector's last run succeeded or found nothing to collect, 0
    if it failed or is late.
goodput_node_collector_seconds{collector}: Duration of the collector's last run.
goodput_node_collector_errors_total{collector}: Failed runs of the collector.
goodput_textfile_modified_timestamp_seconds{file}: When a file of --textfile-dir was last written, in Unix time.
goodput_textfile_refused{file reason}: 1 if something of a file of --textfile-dir is not served: all of it if it
    is malformed, unreadable, large or has a timestamp; else what clashes with other names (clash) or was
    there before (duplicate).
goodput_node_pushes_total{outcome}: Pushes to the aggregator by outcome: accepted, rejected, unreachable.
goodput_node_push_failures_total{reason}: Failed pushes by reason: unauthorized (401, missing or unknown
    token), forbidden (403), version (the aggregator supports no report version of this
    agent), quota (429, its token has pushed more than it may), token (unusable token file), tls, connect, timeout, answer (not understood),
    http_3xx (a redirect, which is not followed), http_4xx, http_5xx. The data is kept and sent later.
goodput_node_requests_refused_total{reason}: Refused requests to the agent's own server by reason: the token
    is missing, malformed, unknown, expired or of the wrong scope, or the Host header names another machine
    (host).
goodput_node_token_reload_errors_total: Changes of the agent's token or certificate file that could not be
    loaded.
goodput_node_reload_failing{file}: 1 while the current tokens or certificate file cannot be loaded and the
    previous version is in use.
goodput_node_certificate_expiry_timestamp_seconds: Unix time at which the agent's certificate or one of its
    chain expires; absent without TLS.
goodput_node_push_rejections_total{reason}: Rank reports that the aggregator rejected, by reason; they are not
    sent again.
goodput_node_backlog_rows: Step rows that the aggregator has not acknowledged.
goodput_node_rows_thinned_total: Step rows merged into later ones to bound the backlog; resolution is lost,
    time is not.
goodput_node_events_dropped_total: Events of ranks (marks, checkpoints, ...) dropped from the backlog before
    the aggregator acknowledged them.
goodput_node_reports_refused_total: Reports of rank processes that were not queued because the backlog holds
    too many processes.
goodput_node_ras_queries_total{outcome}: Queries of NCCL's RAS about ranks that hang (--nccl-ras) by outcome:
    answered, failed.
goodput_node_stacks_total{outcome}: Stack dumps requested by the aggregator (--py-spy) by outcome: taken,
    failed, ignored (not a rank of this node), refused (the page names a process of another user).
goodput_node_stack_bursts_total{outcome}: Bursts of stack samples of ranks in no phase (--stack-samples) by
    outcome: taken, discarded (the rank was in a phase that stacks do not show), failed, refused (the page
    names a process of another user).
goodput_node_stack_bursts_cpu_seconds_total: CPU time of py-spy for these bursts.
goodput_health_events_total{kind severity device}: Hardware events of GPUs and links: xid, ecc, row_remap,
    page_retired, throttle, lost, back, gpu_reset, gpu_hang, page_fault, link_down, link_up, link_flap,
    retransmits, driver (its process was restarted); severity is info, warning, critical; device is the GPU's uuid, the interface, the RDMA
    device/port, tcp, the driver, or other once the agent's limit of devices is reached.
goodput_health_events_dropped_total: Hardware events dropped before the aggregator acknowledged them.
goodput_health_events_waiting: Hardware events that the aggregator has not acknowledged.
goodput_node_otlp_exports_total{outcome}: Exports to the OTLP receiver (--otlp) by outcome: accepted, refused
    (answered with an error or a redirect), unreachable (no answer in time), failed (the series could not be
    collected). Absent without --otlp.
goodput_node_otlp_points_total{outcome}: Points exported by outcome: accepted, rejected (by a receiver that
    took the others), lost (with a request that failed; the next export has newer values).
goodput_node_otlp_accepted_age_seconds: Time since the OTLP receiver last accepted all series, or since the
    start.
goodput_node_series{level}: Series of the agent's /metrics, by what there is one of: rank, or the node itself.
goodput_node_scrape_seconds: Duration of the previous scrape.
goodput_node_cpu_seconds_total: CPU time used by the agent.
goodput_node_memory_bytes: Resident memory of the agent.
"""
