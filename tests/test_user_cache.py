"""Files kept for a user: found where XDG says, replaced in one step, and no draft is left when that fails."""

import os

from goodput import user_cache


def test_the_cache_is_where_xdg_says(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert user_cache.path_of("probe", "n0.json") == "/somewhere/goodput/probe/n0.json"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/one")
    assert user_cache.path_of("peaks.json") == "/home/one/.cache/goodput/peaks.json"


def test_a_file_is_replaced_and_no_draft_stays(tmp_path):
    path = tmp_path / "new" / "peaks.json"
    assert user_cache.replace(str(path), "one")
    assert user_cache.replace(str(path), "two")
    assert path.read_text() == "two"
    assert os.listdir(path.parent) == ["peaks.json"]


def test_what_cannot_be_written_leaves_no_draft(tmp_path):
    (tmp_path / "peaks.json").mkdir()
    (tmp_path / "peaks.json" / "full").write_text("")
    assert not user_cache.replace(str(tmp_path / "peaks.json"), "one")
    assert os.listdir(tmp_path) == ["peaks.json"]
    assert not user_cache.replace(str(tmp_path / "peaks.json" / "full" / "below"), "one")
