"""The agent's series of the node's last probe."""

import json

import pytest
from support.node.node_tree import collect, of

from goodput_exporters.collector import NoData, Settings
from goodput_exporters.collectors.probe.collector import FIGURES_MAX, Probe


def figure(name: str, value, unit: str, index=None, device: str = "H100") -> dict:
    return {"name": name, "value": value, "unit": unit, "device": device, "index": index}


def collected(path, *figures: dict, problem: str | None = None, **more) -> list:
    path.write_text(json.dumps({"host": "n0", "time": 1000.0, "figures": figures, **more}))
    return collect(Probe(Settings("", probe=str(path), unix_ns=lambda: 1060 * 10**9)), problem)


def test_series_of_a_probe(tmp_path):
    found = collected(
        tmp_path / "n0.json",
        figure("gemm_bf16", 700e12, "FLOP/s", 0),
        figure("gemm_bf16", 690e12, "FLOP/s", 1),
        figure("h2d_pinned", 55e9, "B/s", 0),
        figure("storage_read", 1.6e9, "B/s", device=""),
        figure("small_files", 7998.0, "1/s", device=""),
        figure("storage_write", None, "B/s", device=""),
    )
    assert of(found, "goodput_probe_age_seconds") == {(): 60}
    assert of(found, "goodput_probe_flops_per_second") == {
        ("H100", "gemm_bf16", "0"): 700e12,
        ("H100", "gemm_bf16", "1"): 690e12,
    }
    assert of(found, "goodput_probe_bytes_per_second") == {
        ("H100", "h2d_pinned", "0"): 55e9,
        ("", "storage_read", ""): 1.6e9,
    }
    assert of(found, "goodput_probe_files_per_second") == {("", "small_files", ""): 7998}


def test_figures_that_are_not_the_probes_have_no_series(tmp_path):
    """A file that any user may have written: other names and units, one figure twice, devices of any text, more than there are."""
    found = collected(
        tmp_path / "n0.json",
        figure('x"}', 1.0, "B/s"),
        figure("a", 1.0, "apples"),
        figure("b", 1.0, "B/s", "first"),
        figure("c", 1.0, "B/s", device="a\nb" * 1000),
        figure("d", 1.0, "B/s"),
        figure("d", 2.0, "B/s"),
        time="yesterday",
    )
    values = of(found, "goodput_probe_bytes_per_second")
    assert {key[1]: value for key, value in values.items()} == {"c": 1, "d": 1}
    assert max(len(device) for device, _, _ in values) <= 100 and not any("\n" in key[0] for key in values)
    assert of(found, "goodput_probe_age_seconds") == {}
    many = [figure(f"f{n}", 1.0, "B/s") for n in range(FIGURES_MAX + 50)]
    kept = collected(tmp_path / "n1.json", *many, problem=f"{FIGURES_MAX + 50} figures of a probe")
    assert len(of(kept, "goodput_probe_bytes_per_second")) == FIGURES_MAX


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_node_without_a_probe_has_none(tmp_path, text):
    if text is not None:
        (tmp_path / "n0.json").write_text(text)
    for path in (str(tmp_path / "n0.json"), ""):
        with pytest.raises(NoData, match="no probe of this node is kept"):
            collect(Probe(Settings("", probe=path)))
