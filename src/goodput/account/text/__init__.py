"""An account as text, and the formats of its figures."""

from goodput.account.text.communication import slow_issue_text, slow_link_text
from goodput.account.text.formats import (
    COLUMNS,
    THREE_DIGITS_FROM,
    UNKNOWN_STEP,
    between,
    bytes_text,
    digits,
    dollars,
    duration,
    duration_ns,
    interval,
    milliseconds,
    on,
    percent,
    tenths,
    unit_of,
    whole,
    wrap,
)
from goodput.account.text.report import COMPARED_SHARE_MIN, render
from goodput.account.text.states_table import more_than_rank, state_rows

__all__ = (
    "COLUMNS",
    "COMPARED_SHARE_MIN",
    "THREE_DIGITS_FROM",
    "UNKNOWN_STEP",
    "between",
    "bytes_text",
    "digits",
    "dollars",
    "duration",
    "duration_ns",
    "interval",
    "milliseconds",
    "more_than_rank",
    "on",
    "percent",
    "render",
    "slow_issue_text",
    "slow_link_text",
    "state_rows",
    "tenths",
    "unit_of",
    "whole",
    "wrap",
)
