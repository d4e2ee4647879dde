"""Jobs that change on every node every ten minutes, beside the runs of a scenario.

An alert on hardware must not begin anew with each of them, and they are too short to have alerts of their own.
"""

from __future__ import annotations

from goodput.simulate.scenario import AttemptPlan, RunFault, RunPlan, Scenario, Span, Workload

JOB_SECONDS, BETWEEN_SECONDS, MARGIN_SECONDS = 600.0, 30.0, 60.0
_WORKLOAD = Workload(step=30, checkpoint_every=1e9, evaluation_every=1e9, epoch_every=1e9)


def changing_jobs(scenario: Scenario, seconds: float, *faults: RunFault) -> list[RunPlan]:
    """One after the other from the first minute on, each with a rank on the last GPU of every node.

    Nodes whose agent is away during a job are left out: it would report the job's rows when the job is long over, and
    the replay's aggregator has no ledger to fold them from. `faults` are those that all jobs share.
    """
    jobs, start = [], 60.0
    while start < seconds:
        end = start + JOB_SECONDS - BETWEEN_SECONDS
        span = (start - MARGIN_SECONDS, end + MARGIN_SECONDS)
        places = [
            (node, gpus - 1) for node, gpus in scenario.nodes.items() if not _is_away(scenario, node, span)
        ]
        attempt = AttemptPlan(start, end, places, "finished", startup=10, restore=5, compile=10)
        name, seed = f"job-{len(jobs)}", 1000 + len(jobs)
        jobs.append(RunPlan(name, [attempt], _WORKLOAD, seed=seed, faults=list(faults)))
        start += JOB_SECONDS
    return jobs


def _is_away(scenario: Scenario, node: str, span: Span) -> bool:
    outages = [*scenario.agent_outages.get(node, []), *scenario.push_outages.get(node, [])]
    return any(low < span[1] and high > span[0] for low, high in outages)
