"""Fixtures of the node agent's tests."""

from __future__ import annotations

import pytest
from support.node import node_rank
from support.node.aggregator import Aggregator
from support.node.node_tree import Clock, write_tree

from goodput_exporters.collector import Settings
from goodput_exporters.collectors.ranks.collector import Ranks


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def tree(tmp_path):
    """A directory with proc/, sys/ and an empty pages/; process PID of procfs lives until its stat is removed."""
    write_tree(tmp_path)
    (tmp_path / "pages").mkdir()
    return tmp_path


@pytest.fixture
def settings(tree, clock):
    return Settings(
        directory=str(tree / "pages"),
        sysfs=str(tree / "sys"),
        procfs=str(tree / "proc"),
        monotonic_ns=clock.monotonic_ns,
        unix_ns=clock.unix_ns,
    )


@pytest.fixture
def aggregator():
    server = Aggregator()
    yield server
    server.close()


@pytest.fixture
def ranks(settings):
    """A Ranks collector on the fixture tree."""
    collector = Ranks(settings)
    yield collector
    collector.close()


@pytest.fixture
def processes():
    """Start node_rank.Process and end them all."""
    started = []

    def start(directory, **given):
        started.append(node_rank.Process(directory, **given))
        return started[-1]

    yield start
    for process in started:
        if process.process.poll() is None:
            process.kill()
