"""Series of the aggregator about itself."""

from __future__ import annotations

from goodput.metrics.metric import declare

SERIES = declare(
    "aggregator",
    [
        ("goodput_aggregator_info", "gauge", "", "version", "1, with the aggregator's version."),
        ("goodput_aggregator_reports_total", "counter", "", "outcome", "Reports received: accepted, malformed, failed."),
        ("goodput_aggregator_rank_rejections_total", "counter", "", "reason", "Rank reports refused, by reason."),
        ("goodput_aggregator_rows_total", "counter", "", "kind", "Step and event rows received: new, repeated."),
        ("goodput_aggregator_clamped_total", "counter", "", "what",
         "Values that contradicted others of their rank and were cut to fit."),
        ("goodput_aggregator_stacks_total", "counter", "", "outcome",
         "Stacks that agents brought: accepted, ignored (nobody had asked for them)."),
        ("goodput_aggregator_health_events_total", "counter", "", "kind severity",
         "Health events of nodes' hardware that came, each once; unusual kinds as other."),
        ("goodput_aggregator_health_dropped_total", "counter", "", "reason",
         "Health events left out: malformed, time (far ahead), full (more than are kept in memory; the least important), "
         "scope (they hit no run that their token is for)."),
        ("goodput_aggregator_ingest_seconds_total", "counter", "seconds", "", "Time spent on taking reports."),
        ("goodput_aggregator_ledger_errors_total", "counter", "", "", "Failed writes to the ledger."),
        ("goodput_aggregator_requests_total", "counter", "", "route code",
         "Requests answered, by route and status; code 499 is a client that went away before its answer."),
        ("goodput_aggregator_request_seconds", "histogram", "seconds", "route",
         "From a request's headers to the end of its answer."),
        ("goodput_aggregator_requests_refused_total", "counter", "", "reason",
         "Requests that a limit refused: body, encoding, head, slow, busy, host, origin, throttled, sessions, malformed."),
        ("goodput_aggregator_auth_failures_total", "counter", "", "reason",
         "Requests without the right to what they asked for: missing, malformed, unknown, expired, session, scope."),
        ("goodput_aggregator_tokens", "gauge", "", "scope", "Tokens in force: ingest, read, metrics."),
        ("goodput_aggregator_token_expiry_timestamp_seconds", "gauge", "seconds", "",
         "Unix time at which the next of the tokens in force expires; absent if none does."),
        ("goodput_aggregator_token_reload_errors_total", "counter", "", "",
         "Looks at a changed token file that could not be used; the tokens from before stay in force."),
        ("goodput_aggregator_tls_reload_errors_total", "counter", "", "",
         "Looks at a changed certificate or key that could not be used; the one from before is served on."),
        ("goodput_aggregator_reload_failing", "gauge", "bool", "file",
         "1 while the newest file of the tokens, or of the certificate, cannot be used and an older one is in force."),
        ("goodput_aggregator_sessions", "gauge", "", "", "Browsers that are signed in."),
        ("goodput_aggregator_connections", "gauge", "", "", "Connections that are open."),
        ("goodput_aggregator_runs", "gauge", "", "", "Runs in memory."),
        ("goodput_aggregator_cpu_seconds_total", "counter", "seconds", "", "CPU time of the aggregator."),
        ("goodput_aggregator_memory_bytes", "gauge", "bytes", "", "Resident memory of the aggregator."),
    ],
)  # fmt: skip
