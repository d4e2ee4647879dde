"""PyTorch as most install it: built for CUDA, also on a machine without a GPU. The device clock waits for a device."""

import pytest
from support.frameworks.script_process import IMPLEMENTATIONS, run_implementation
from support.installed import need

from goodput.sdk.device.device_clock import BIND_STEPS

need("torch")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_training_without_a_device_in_use(tmp_path, implementation):
    found, printed = run_implementation("cuda_build.py", tmp_path, implementation, forked="torch")
    assert printed == ""
    assert found["steps"] == 20
    assert found["clocks"][0] and not any(found["clocks"][BIND_STEPS + 1 :])
