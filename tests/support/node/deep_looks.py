"""A deep look as the file beside a page has it."""

from support.node.node_tree import MS

SEEN = {
    "unix_ns": 0, "step": 3, "device": "CPU", "wall_ns": 10 * MS, "communication_ns": 3 * MS, "copy_ns": 0,
    "states_ns": {"compute": 4 * MS, "communication": MS, "copy": 0, "loader": 5 * MS, "host": 0, "idle": 0},
    "communication_hidden_ns": 2 * MS, "copy_hidden_ns": 0, "kernel_ns": 7 * MS, "gaps": 1, "late_gaps": 0,
    "late_gaps_ns": 0, "top": [], "cause": None, "cost_ns": MS, "slowdown_ns": 0, "analysis_ns": 0,
}  # fmt: skip
LOOK = {
    "version": 1, "run": "r1", "rank": 0, "attempt": 1, "unix_ns": 0, "looks": 2, "skipped": 1, "failed": 0, "why": "",
    "cost_ns": 20 * MS, "every_ns": 600 * 10**9, "seen": SEEN,
}  # fmt: skip
