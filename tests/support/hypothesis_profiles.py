"""Two ways to draw examples: `suite` draws the same ones in every process, `fuzz` others in every run.

Hypothesis also draws constants that it finds in the modules imported so far, so with a fixed seed alone the examples of
a test depend on which other tests its process has run. The provider of `suite` leaves those constants out.
"""

from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider
from hypothesis.internal.constants_ast import Constants


class RepeatableProvider(HypothesisProvider):
    """Hypothesis's own provider of draws, without constants from the modules that are imported."""

    _local_constants = Constants()


def load(name: str) -> None:
    """Register both profiles and load one of them, "suite" or "fuzz"."""
    AVAILABLE_PROVIDERS["repeatable"] = f"{__name__}.{RepeatableProvider.__name__}"
    # How fast a strategy makes its values depends on what else runs on the machine.
    common = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
    # They are the same in every run, so half of hypothesis's own 100; `fuzz` draws as many others as there is time for.
    same = {"max_examples": 50, "derandomize": True, "database": None, "backend": "repeatable"}
    settings.register_profile("suite", common, **same)
    settings.register_profile("fuzz", common, print_blob=True)
    settings.load_profile(name)
