"""Which times a rank may report: others would stretch its run, and what all runs add up to, over years."""

from __future__ import annotations

from goodput.wire import schema

# How far a host's clock may be ahead of ours.
AHEAD_NS_MAX = 86_400 * 10**9


def ahead_problem(report: schema.RankReport, steps_end_ns: int, now_ns: int) -> str | None:
    """Why a report may not be merged that has a time far ahead of `now_ns`, our clock; None if it has none."""
    live = report.live
    latest_ns = max(report.identity.start_ns, live.now_ns, live.last_ns, live.end_ns, steps_end_ns)
    if latest_ns <= now_ns + AHEAD_NS_MAX:
        return None
    return (
        f"{schema.name_of(report)}: reports a time {(latest_ns - now_ns) / 8.64e13:.1f} days ahead; check the clock of "
        f"{report.identity.host}"
    )


def start_problem(
    identity: schema.Identity, run_start_ns: int | None, now_ns: int, age_ns_max: int
) -> str | None:
    """Why a process may not be merged that is new and began more than `age_ns_max` ago; None if it may.

    No process of its run, which began at `run_start_ns` as far as it is known, may begin before that either. Only its
    start has to be bounded: an account counts nothing before it, whatever the times of its steps are.
    """
    if identity.start_ns >= now_ns - age_ns_max:
        return None
    if run_start_ns is not None and identity.start_ns >= run_start_ns:
        return None
    return (
        f"run {identity.run!r} rank {identity.rank}: began {(now_ns - identity.start_ns) / 8.64e13:.1f} days ago, at most "
        f"{age_ns_max / 8.64e13:g} are accepted of a process that is not known (goodput serve --oldest-start); check the "
        f"clock of {identity.host}"
    )
