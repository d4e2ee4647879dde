"""What goes wrong with a stream. Without nats-py, so that an aggregator without a stream needs none."""

from __future__ import annotations


class StreamError(Exception):
    """The stream cannot be reached, or is not the one that was expected; the text says which and why."""


class Elsewhere(Exception):
    """A request is about a run of another aggregator."""

    def __init__(self, partition: int):
        super().__init__(partition)
        self.partition = partition
