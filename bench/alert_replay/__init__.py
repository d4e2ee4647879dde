"""Ten simulated days without trouble, and a morning on which everything breaks, replayed through the shipped alerts.

    innocent.py   a scenario in which nothing may page
    planted.py    a scenario with one fault for each alert, which must fire on the right run, rank, node or device in time
    scrape.py     a scenario, simulated by goodput.simulate, as Prometheus would scrape it; aggregator.py is the project's
                  own Store, Accounts and Exposition on the simulated clock
    server.py     a Prometheus that gets all samples by remote write (wire.py) and evaluates every expression
    evaluate.py   what Prometheus does around expressions: recording rules, `for`, `keep_firing_for`
    verdict.py    which faults were detected, and when; table.py writes docs/detection.md

Not covered: the agents' own code (their series are simulated, and checked against the catalogue by name and labels),
Alertmanager, and whatever happens between two scrapes. tests/replay runs a smaller form.
"""
