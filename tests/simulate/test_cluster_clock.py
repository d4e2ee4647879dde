"""A scenario that is played later has the same reports, at later times."""

from __future__ import annotations

from goodput.simulate.check.cluster import Cluster
from goodput.simulate.scenario import EPOCH_SECONDS
from goodput.simulate.scenario_file import AttemptEntry, ClockEntry, RunEntry, ScenarioFile
from goodput.wire import schema

ATTEMPTS = [AttemptEntry(5, 60), AttemptEntry(80, 150, "finished", submit=65)]
SCENARIO = ScenarioFile(
    160, [RunEntry("r", 8, ATTEMPTS)], clocks=[ClockEntry("r-n000", ahead=-2)], push_every=10
)


def identities(start_unix: float) -> dict[int, schema.Identity]:
    """Rank 0's, by attempt."""
    found: dict[int, schema.Identity] = {}

    def post(body: bytes) -> bytes:
        for one in schema.decode(body).ranks:
            if one.identity.rank == 0:
                found[one.identity.attempt] = one.identity
        return schema.encode(schema.Ack(8))

    with Cluster(SCENARIO, lambda: post, start_unix) as cluster:
        for now in range(0, 170, 10):
            cluster.advance(now)
            cluster.push(now)
    return found


def test_all_times_are_shifted_alike():
    """The time of submission is by the scheduler's clock, that of the start by the node's, two seconds behind."""
    first, later = identities(EPOCH_SECONDS), identities(EPOCH_SECONDS + 86_400)
    assert first.keys() == later.keys() == {1, 2}
    assert first[2].submit_time == EPOCH_SECONDS + 65 and first[2].start_ns == (EPOCH_SECONDS + 78) * 10**9
    for attempt, one in first.items():
        assert later[attempt].start_ns - one.start_ns == 86_400 * 10**9
    assert first[1].submit_time is None and later[1].submit_time is None
    assert later[2].submit_time == EPOCH_SECONDS + 86_400 + 65
