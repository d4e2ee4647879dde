"""What a replay predicts for real trainings with planted delays, against the same training's steps without them."""

from support.whatif.trainings import PAIRS, outcomes


def test_prediction_meets_what_removing_a_delay_brings(tmp_path):
    """Within 2 % of the time, and of what ranks had no core for in a step; the greater part of the delay is saved."""
    factor = 0.85
    delay = 0.04 * factor  # a step, saves too: 0.2 s in every fifth
    found = outcomes(2, 12, 3, tmp_path, factor=factor, rounds_max=12)
    assert found.keys() == PAIRS.keys()
    for name, one in found.items():
        assert abs(one.error) <= 0.02 + one.core_wait / one.recorded, (name, one)
        assert one.recorded - one.predicted > delay / 2 and one.high - one.low < one.recorded, (name, one)
