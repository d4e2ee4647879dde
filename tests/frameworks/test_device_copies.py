"""Copies to a device are timed, other calls of `Tensor.to` are not; run on the device `meta`."""

import json

from support.frameworks.script_process import run_script
from support.installed import need
from support.mentions import mentions_goodput

need("torch")


def run(directory, *arguments: str) -> dict:
    done = run_script("device_copies.py", *arguments, forked="torch", GOODPUT_DIR=str(directory))
    assert not mentions_goodput(done.stderr), done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_only_copies_to_a_device_are_timed(tmp_path):
    found = run(tmp_path, "device")
    for name in ("device", "keyword", "like another"):
        assert found[name] == ["meta", 1], name
    assert found["module"] == ["meta", 2]
    assert found["dtype"] == ["torch.float64", 0]
    assert found["host to host"] == ["cpu", 0] and found["device to device"] == ["meta", 0]
    assert found["lazy"] == ["LazyLinear", 0]
    assert found["strict"] == ["torch.float64", 0] and found["strict_calls"] == [True]
    assert found["mode"] == [True, 0] and found["mode_calls"] == ["to"]
    assert found["restored"] and found["original"]


def test_nothing_is_replaced_without_a_device(tmp_path):
    found = run(tmp_path)
    assert found["device"] == ["meta", 0] and found["lazy"] == ["LazyLinear", 0] and found["original"]
