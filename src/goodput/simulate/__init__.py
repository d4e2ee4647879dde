"""A simulated training cluster: from a scenario to what rank processes and node agents would report of it.

    scenario.py    the plan: nodes, runs, faults of runs, changes of the hardware, outages, on one time line
    scenario_file.py, random_scenario.py    the plan of runs as people write it, and made from a seed
    run.py         one run, attempt by attempt, from the plan and a seed
    steps.py       one step of its ranks
    truth.py       what a run truly did, by rank and state
    world.py       all runs of a scenario, moved on from moment to moment
    reports.py     what node agents push of the ranks (`wire.schema.RankReport`)
    ranks.py       what node agents expose of the ranks
    node.py        what node agents expose of a node, as arrays over all moments; its parts:
    gpus.py, links.py, host.py, agent.py
    check/         `goodput simulate`: pushes to a real aggregator, and what that says compared with the truth

Times are seconds from the scenario's beginning, `EPOCH_SECONDS`. The same scenario gives the same values on every
machine. Every series is checked against the catalogue by name and labels.

    world = World(scenario, times)
    for tick, now in enumerate(times):
        world.advance(tick)
        for report in world.reports(now): ...
"""
