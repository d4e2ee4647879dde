"""The pattern for JAX on a real one, on the CPU; skipped where there is none, for it is no part of the test extra."""

from support.frameworks.training_runs import steps, train
from support.installed import need


def test_step_waits_for_the_previous_one(tmp_path):
    need("jax")
    run = train("jax_steps.py", tmp_path, forked="", JAX_PLATFORMS="cpu")
    (page,) = run.snapshots("jax")
    assert steps(page) == list(range(20)) and page.steps[-1].samples == 20 * 64
    spent = run.seconds("jax")
    assert spent["forward"] > 0 and spent["compile"] > 0
    assert page.identity["dtype"] == "fp32" and page.identity["device"]
