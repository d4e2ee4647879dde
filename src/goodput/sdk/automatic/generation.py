"""Tokens that a model has generated since the last training call, and whether the next training call is made on them.

They are taken to be trained on if the call's token ids have the length of a whole generated sequence, or lack its last
token, in no more rows than were generated, and no batch was fetched in between. This compares shapes alone, since
reading tokens on a device would wait for it.
"""

from __future__ import annotations

REPEATS_MAX = 2  # calls of one shape after the last one that grew; more are a context that is cut off


class Generation:
    """The sequences generated without gradients since the last training call."""

    def __init__(self):
        self.rows, self.lengths, self.repeats = (
            0,
            (0, 0),
            0,
        )  # `lengths` of the longest and of the last sequence
        self.fetched = self.matched = False

    def grow(self, before: tuple[int, int], continues: bool) -> None:
        """Another token is generated, after a call on `before`: (rows, length)."""
        longest, last = self.lengths
        if continues:
            last += 1
        else:
            self.rows, last, self.fetched = self.rows + before[0], before[1] + 2, False
        self.lengths, self.repeats = (max(longest, last), last), 0

    def match(self, rows: int, length: int) -> bool:
        """Note a call with gradients on token ids of this shape; whether it is made on what was generated."""
        is_length = length in self.lengths or length + 1 in self.lengths
        if 0 < rows <= self.rows and is_length and self.repeats <= REPEATS_MAX and not self.fetched:
            self.matched = True
        return self.matched
