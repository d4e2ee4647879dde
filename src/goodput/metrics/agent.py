"""Series of the node agent about itself: its pages, collectors, pushes and cost."""

from __future__ import annotations

from goodput.metrics.metric import declare

SERIES = declare(
    "node",
    [
        ("goodput_node_info", "gauge", "", "host version", "1, with the agent's version."),
        ("goodput_node_pages", "gauge", "", "state", "Rank pages found at the last look: live, dead, rejected."),
        ("goodput_node_page_errors_total", "counter", "", "reason", "Looks at a page that gave an error, by reason."),
        ("goodput_node_collector_up", "gauge", "bool", "collector",
         "1 if the collector's last run worked or had nothing to collect, 0 if it failed or is late."),
        ("goodput_node_collector_seconds", "gauge", "seconds", "collector", "How long the collector's last run took."),
        ("goodput_node_collector_errors_total", "counter", "", "collector", "Runs of the collector that failed."),
        ("goodput_node_pushes_total", "counter", "", "outcome",
         "Reports to the aggregator by outcome: accepted, rejected, unreachable."),
        ("goodput_node_push_failures_total", "counter", "", "reason",
         "Pushes that the aggregator did not take, by reason: unauthorized (401: no token, or one it does not know), "
         "forbidden (403), token (its file cannot be used), tls, connect, timeout, answer, http_4xx, http_5xx."),
        ("goodput_node_requests_refused_total", "counter", "", "reason",
         "Requests to the agent itself without the right to what they asked for: missing, malformed, unknown, "
         "expired, scope; or the name of a host that is not this machine (host)."),
        ("goodput_node_token_reload_errors_total", "counter", "", "",
         "Looks at a changed file of tokens or certificate of the agent's own server that could not be used."),
        ("goodput_node_reload_failing", "gauge", "bool", "file",
         "1 while the newest file of the tokens, or of the certificate, of the agent's own server cannot be used."),
        ("goodput_node_push_rejections_total", "counter", "", "reason",
         "Rank reports that the aggregator refused, by reason."),
        ("goodput_node_backlog_rows", "gauge", "", "", "Step rows waiting for the aggregator's acknowledgement."),
        ("goodput_node_rows_thinned_total", "counter", "", "",
         "Step rows merged into later ones to keep the backlog bounded; their time is not lost."),
        ("goodput_node_stacks_total", "counter", "", "outcome",
         "Stacks of ranks that the aggregator asked for, where that is allowed: taken, failed, ignored."),
        ("goodput_health_events_total", "counter", "", "kind severity device",
         "Things that happened to GPUs and links: xid, ecc, row_remap, page_retired, throttle, lost, back, link_down, "
         "link_up, link_flap, retransmits, driver (its process was replaced); severity is info, warning, critical; device is "
         "the GPU's uuid, the interface, the RDMA device/port, tcp, the driver, or other beyond the agent's bound."),
        ("goodput_health_events_dropped_total", "counter", "", "", "Health events that were dropped before the aggregator had them."),
        ("goodput_health_events_waiting", "gauge", "", "", "Health events that the aggregator has not acknowledged."),
        ("goodput_node_scrape_seconds", "gauge", "seconds", "", "How long the agent took for the last scrape before this one."),
        ("goodput_node_cpu_seconds_total", "counter", "seconds", "", "CPU time of the agent itself."),
        ("goodput_node_memory_bytes", "gauge", "bytes", "", "Resident memory of the agent itself."),
    ],
)  # fmt: skip
