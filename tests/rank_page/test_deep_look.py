"""The file of a deep look: written, read, and refused where it is invalid."""

import copy
import json
import os

import pytest

from goodput.rank_page import deep_look
from goodput.trace import STATES

SEEN = {
    "unix_ns": 5, "step": 640, "device": "CPU", "wall_ns": 1000, "communication_ns": 200, "copy_ns": 0,
    "states_ns": {"compute": 500, "communication": 100, "copy": 0, "loader": 350, "host": 50, "idle": 0},
    "communication_hidden_ns": 100, "copy_hidden_ns": 0, "kernel_ns": 700, "gaps": 3, "late_gaps": 2, "late_gaps_ns": 60,
    "top": [{"name": "aten::mm", "kind": "operator", "count": 3, "ns": 400}],
    "cause": {"state": "loader", "gain": 1.54, "advice": "More workers."},
    "cost_ns": 7, "slowdown_ns": 3, "analysis_ns": 9, "h2d_ns": 0, "h2d_bytes": 0,
}  # fmt: skip
LOOK = {
    "version": 1, "run": "r", "rank": 2, "attempt": 1, "unix_ns": 6, "looks": 4, "skipped": 1, "failed": 0, "why": "",
    "cost_ns": 21_000_000, "every_ns": 600 * 10**9, "seen": SEEN,
}  # fmt: skip


def changed(path: str, value) -> dict:
    made = copy.deepcopy(LOOK)
    *way, last = path.split(".")
    inner = made
    for name in way:
        inner = inner[name]
    inner[last] = value
    return made


def test_states_are_those_of_a_trace():
    assert deep_look.STATES == STATES


def test_written_look_is_read(tmp_path):
    at = str(tmp_path / "r.2.1.page")
    assert deep_look.read(at) is None
    deep_look.write(at, LOOK)
    assert deep_look.read(at, os.getuid()) == LOOK
    deep_look.write(at, changed("seen", None))
    assert deep_look.read(at)["seen"] is None
    assert os.listdir(tmp_path) == ["r.2.1.page.look.json"]


def test_look_of_an_earlier_version_has_no_copies_to_the_device(tmp_path):
    seen = {name: value for name, value in SEEN.items() if not name.startswith("h2d")}
    deep_look.write(str(tmp_path / "r.page"), {**LOOK, "seen": seen})
    assert deep_look.read(str(tmp_path / "r.page")) == LOOK and deep_look.h2d_rate(SEEN) is None


def test_failed_write_leaves_no_draft(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        deep_look.write(str(tmp_path / "none" / "r.page"), LOOK)
    (tmp_path / "r.page.look.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        deep_look.write(str(tmp_path / "r.page"), LOOK)
    assert os.listdir(tmp_path) == ["r.page.look.json"]


def test_directory_in_place_of_a_look_is_refused(tmp_path):
    (tmp_path / "r.page.look.json").mkdir()
    before = os.listdir("/proc/self/fd")
    with pytest.raises(deep_look.LookError, match="no file of at most"):
        deep_look.read(str(tmp_path / "r.page"))
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("version", 2),
        ("run", 5),
        ("rank", -1),
        ("rank", True),
        ("looks", 1.5),
        ("cost_ns", 1 << 62),
        ("why", None),
        ("seen", []),
        ("seen", "x"),
        ("seen.wall_ns", 1001),
        ("seen.states_ns.idle", 1),
        ("seen.states_ns.idle", "0"),
        ("seen.states_ns", {"compute": 1000}),
        ("seen.top", 3),
        ("seen.top", [{"name": "x"}]),
        ("seen.top", [None]),
        ("seen.cause", {"state": "loader"}),
        ("seen.cause.state", "nothing"),
        ("seen.cause.gain", float("nan")),
        ("seen.cause.gain", "1"),
        ("seen.cause.gain", 0),
    ],
)
def test_invalid_look_is_refused(tmp_path, path, value):
    (tmp_path / "r.page.look.json").write_text(json.dumps(changed(path, value)))
    with pytest.raises(deep_look.LookError, match=r"r\.page\.look\.json"):
        deep_look.read(str(tmp_path / "r.page"))


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"5", b"\xff", b"[" * 30_000, b"1" * 10_000, b" " * (deep_look.BYTES_MAX + 1)]
)
def test_invalid_json_is_refused(tmp_path, raw):
    (tmp_path / "r.page.look.json").write_bytes(raw)
    with pytest.raises(deep_look.LookError):
        deep_look.read(str(tmp_path / "r.page"))


def test_only_a_file_of_the_owner_is_read(tmp_path):
    at = str(tmp_path / "r.page")
    deep_look.write(at, LOOK)
    with pytest.raises(deep_look.LookError, match="another user"):
        deep_look.read(at, os.getuid() + 1)
    os.rename(deep_look.path_of(at), tmp_path / "there")
    os.symlink(tmp_path / "there", deep_look.path_of(at))
    with pytest.raises(deep_look.LookError):
        deep_look.read(at)
    os.unlink(deep_look.path_of(at))
    os.mkfifo(deep_look.path_of(at))
    with pytest.raises(deep_look.LookError, match="no file"):
        deep_look.read(at)


def test_long_or_unprintable_name_is_cleaned():
    made = changed("seen.top", [{"name": "a\x1b[31m" + "x" * 500, "kind": "k", "count": 1, "ns": 1}] * 50)
    rows = deep_look.checked(made)["seen"]["top"]
    assert len(rows) == deep_look.TOP_MAX
    assert rows[0]["name"].startswith("a?[31m")
    assert len(rows[0]["name"]) == deep_look.NAME_CHARACTERS_MAX
    assert len(json.dumps(deep_look.checked(made))) < deep_look.BYTES_MAX


def test_looks_are_the_newest_of_each_rank(tmp_path):
    for attempt in (1, 2):
        at = tmp_path / f"r.2.{attempt}.page"
        at.touch()
        deep_look.write(str(at), {**LOOK, "attempt": attempt})
    (tmp_path / "r.3.1.page").touch()
    (tmp_path / "r.3.1.page.look.json").write_text("{")
    deep_look.write(str(tmp_path / "gone.0.1.page"), LOOK)
    looks, errors = deep_look.looks_in(str(tmp_path))
    assert [one["attempt"] for one in looks] == [2]
    assert len(errors) == 1
    assert "r.3.1.page.look.json" in errors[0]
