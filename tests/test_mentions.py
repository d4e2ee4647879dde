"""A clone in a folder that is called goodput is no mention of it; its code is."""

from __future__ import annotations

import sys

from support.mentions import ROOT, mentions_goodput


def test_only_names_beside_the_folders_are_mentions():
    assert not mentions_goodput(f"{sys.prefix}/lib/torch/worker.py and {ROOT}/tests/script.py")
    assert mentions_goodput(f"{ROOT}/src/goodput/auto.py") and mentions_goodput("goodput: warning")


def test_folder_of_any_name_counts_as_none(monkeypatch):
    monkeypatch.setattr("support.mentions.ROOT", "/home/me/goodput")
    assert not mentions_goodput("/home/me/goodput/tests/script.py, line 3")
    assert mentions_goodput("/home/me/goodput/src/goodput/auto.py, line 3")
