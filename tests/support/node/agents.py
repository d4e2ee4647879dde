"""Agents on a fixture tree."""

from goodput_exporters.agent import Agent


def agent_on(tree, clock, **given) -> Agent:
    arguments = {
        "directory": str(tree / "pages"), "sysfs": str(tree / "sys"), "procfs": str(tree / "proc"), "node": "n0",
        "version": "0", "monotonic_ns": clock.monotonic_ns, "unix_ns": clock.unix_ns,
    }  # fmt: skip
    return Agent(**{**arguments, **given})
