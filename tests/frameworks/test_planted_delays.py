"""A delay planted in a training on the CPU is found within 5 % and named first; a clean run has no cause above 2 %."""

from __future__ import annotations

import pytest
from support.frameworks import script_process
from support.installed import need

pytestmark = pytest.mark.alone

need("torch")
TOLERANCE, FALSE_MAX = 0.05, 0.02
PLANTED = ("loader", "worker", "checkpoint", "evaluation", "compile")


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """The trainings of an implementation, which run once; the Python one only the clean training."""
    made = {}

    def get(implementation: str) -> dict:
        if implementation not in made:
            names = ("clean", *PLANTED) if implementation == "compiled" else ("clean",)
            made[implementation], printed = script_process.run_implementation(
                "planted_delays.py",
                tmp_path_factory.mktemp("planted"),
                implementation,
                forked="torch",
                PLANTED=" ".join(names),
            )
            assert printed == ""
        return made[implementation]

    return get


@pytest.mark.parametrize("name", PLANTED)
def test_planted_delay_is_found_and_leads(outcome, name):
    found = outcome("compiled")[name]
    planted, account = found["planted"], found["account"]
    state = {"worker": "loader"}.get(name, name)
    assert planted > 0.3
    tolerance = TOLERANCE * planted + found["core_wait"]
    assert account["states"][state] == pytest.approx(planted, abs=tolerance), account["states"]
    # Compilation is paid once, so it leads by size only.
    by_size = [cause["state"] for cause in account["causes"] if cause["state"] != "startup"]
    leading = by_size if state == "compile" else account["advice_order"]
    assert leading[0] == state, account["states"]
    assert sum(account["states"].values()) == pytest.approx(account["gpu_seconds"], rel=1e-9)


@pytest.mark.parametrize("implementation", script_process.IMPLEMENTATIONS)
def test_clean_run_has_no_false_cause(outcome, implementation):
    found = outcome(implementation)["clean"]
    states = dict(found["account"]["states"])
    trained = found["account"]["gpu_seconds"] - states.pop("startup")
    # The excess of the first step is real: buffers are allocated and threads started.
    for state in ("productive", "compile"):
        states.pop(state)
    limit = FALSE_MAX * trained + found["core_wait"]
    above = {state: seconds for state, seconds in states.items() if seconds > limit}
    assert above == {}, (limit, trained)
