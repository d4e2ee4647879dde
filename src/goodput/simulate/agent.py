"""What a node agent exposes of itself."""

from __future__ import annotations

from importlib.metadata import version

COLLECTORS = ("ranks", "gpu", "infiniband", "ethernet", "host", "filesystems")


def add(node) -> None:
    node.gauge("goodput_node_info", 1, host=node.name, version=version("goodput-telemetry"))
    for collector in COLLECTORS:
        node.gauge("goodput_node_collector_up", 1, collector=collector)
        node.gauge("goodput_node_collector_seconds", 0.003, collector=collector)
        node.counter("goodput_node_collector_errors_total", 0, collector=collector)
    node.gauge("goodput_node_scrape_seconds", 0.007)
    for state, pages in {"live": (node.busy > 0).sum(axis=0), "dead": 0, "rejected": 0}.items():
        node.gauge("goodput_node_pages", pages, state=state)
    node.gauge("goodput_node_memory_bytes", 41e6 + node.noise(4e5))
    node.gauge("goodput_node_backlog_rows", 8 * node.busy.max(axis=0, initial=0))
    node.counter("goodput_node_cpu_seconds_total", 0.0105)
    for outcome in ("accepted", "rejected", "unreachable"):
        node.counter("goodput_node_pushes_total", 0.2 * (outcome == "accepted"), outcome=outcome)
    node.counter("goodput_node_rows_thinned_total", 0)
    node.counter("goodput_node_events_dropped_total", 0)
    node.counter("goodput_node_reports_refused_total", 0)
    node.counter("goodput_node_token_reload_errors_total", 0)
    for file in ("tokens", "certificate"):
        node.gauge("goodput_node_reload_failing", 0, file=file)
    node.counter("goodput_health_events_dropped_total", 0)
