"""What a replay predicts for real trainings with planted delays, against the same training's steps without them."""

from support.whatif.trainings import PAIRS, outcomes


def test_prediction_meets_what_removing_a_delay_brings(tmp_path):
    """Within 2 % of the time, and of what ranks had no core for in a step."""
    found = outcomes(2, 12, 3, tmp_path, factor=0.85, rounds_max=12)
    assert found.keys() == PAIRS.keys()
    for name, one in found.items():
        assert abs(one.error) <= 0.02 + one.core_wait / one.recorded, (name, one)
        assert one.recorded > 1.3 * one.predicted and one.high - one.low < one.recorded, (name, one)
