"""What an account costs, by which it is decided how often it is computed."""

import time

from goodput.aggregator.accounts.accounts import _Computation


class Waiting:
    """A run whose account is computed in two parts, with a wait as on a machine where others run."""

    def computing(self, now_ns):
        time.sleep(0.2)
        yield
        return "account"


def test_cost_is_without_the_time_that_others_take_of_the_machine():
    """Or figures would stand still for longest where many runs are taken over at once."""
    computation = _Computation(Waiting(), 0, 0)
    while computation.account is None:
        computation.step()
    assert computation.account == "account" and 0 < computation.cost_ns < 100_000_000
