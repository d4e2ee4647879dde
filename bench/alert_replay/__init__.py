"""Ten simulated days of a cluster's life, and a morning on which everything breaks, replayed through the alerts.

In: the rules of deploy/prometheus as they are shipped. Out: what fired, when and why, for two worlds: an innocent one
(innocent.py), in which nothing may page, and one with a planted fault for each alert (planted.py), in which each must
fire on the right run, rank, node or device in time. `python -m bench.alert_replay` runs both and writes
docs/detection.md; tests/replay holds a smaller form of the same.

The way: trainer.py lets runs train and dies with them; aggregator.py is the project's own Store, Accounts and
Exposition on a simulated clock; hardware.py makes the node agents' series. All of it goes by remote write (wire.py) into
a real Prometheus (server.py), which evaluates every expression; rules.py puts back what recording rules gave, and
applies `for` and `keep_firing_for` as Prometheus does.

What it cannot show: the agents' own code (its series are simulated, and checked against the catalogue by name and
labels), Alertmanager, and whatever happens between two scrapes.
"""
