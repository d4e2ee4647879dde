"""`goodput up`: aggregator, node agent, Prometheus, Alertmanager and Grafana on one machine, as child processes."""
