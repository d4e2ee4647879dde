"""What is wrong with the variables GOODPUT_... of a process: names that nothing reads, and values that mean something else.

    problems({"GOODPUT_RNA": "my-run"})    # ["GOODPUT_RNA is no variable of goodput; did you mean GOODPUT_RUN?"]

Numbers of ranks, the budget, deep looks and the folder are checked where they are read.
"""

from __future__ import annotations

PREFIX = "GOODPUT_"
# 0 turns it off and any other value on: name -> what that is.
SWITCHES = {
    "GOODPUT_AUTO": "1",
    "GOODPUT_COLLECTIVES": "1",
    "GOODPUT_COUNT_FLOPS": "1",
    "GOODPUT_DEEP_LOOK_KEEP": "1",
    "GOODPUT_DISABLE": "1: nothing is measured",
    "GOODPUT_KUBEFLOW": "1",
    "GOODPUT_REPORT": "1",
}
KNOWN = {
    *SWITCHES,
    # Of the trainer.
    *("GOODPUT_ATTEMPT", "GOODPUT_BUDGET", "GOODPUT_DEEP_LOOK", "GOODPUT_DEEP_LOOK_RANK", "GOODPUT_DIR"),
    *("GOODPUT_LAUNCH", "GOODPUT_LOCAL_RANK", "GOODPUT_NCCL", "GOODPUT_RANK", "GOODPUT_RUN"),
    *("GOODPUT_RUNS", "GOODPUT_RUNS_DAYS", "GOODPUT_RUNS_SIZE", "GOODPUT_WORLD_SIZE"),
    # Of commands, the agent, and what deploy/ has.
    *("GOODPUT_AGGREGATOR", "GOODPUT_CA_FILE", "GOODPUT_CLIENT_CERT", "GOODPUT_CLIENT_KEY"),
    *("GOODPUT_CLUSTER", "GOODPUT_DCGM_BINDINGS", "GOODPUT_DCGM_EMBEDDED", "GOODPUT_DCGM_HOSTENGINE"),
    *("GOODPUT_DEFAULTS", "GOODPUT_END_WAIT", "GOODPUT_LEDGER", "GOODPUT_NODE_OPTIONS", "GOODPUT_PROGRAM"),
    *("GOODPUT_SERVE_OPTIONS", "GOODPUT_STATE", "GOODPUT_TOKEN_FILE", "GOODPUT_UNIT", "GOODPUT_USER"),
}
# Kubernetes sets GOODPUT_SERVICE_HOST, GOODPUT_PORT_9471_TCP and others in the pods beside a service called goodput.
_OF_SERVICES = ("_SERVICE_HOST", "_SERVICE_PORT", "_PORT_", "_PORT")
ON = ("1", "yes", "true", "on")  # values that mean what they do
NCCL_VALUES = ("", "0", "1", "calls")
SHOWN_MAX = 40  # characters of a name or value


def problems(environ) -> list[str]:
    """One text for each variable, the unknown ones first."""
    own = sorted(name for name in environ if name.startswith(PREFIX))
    return [_unknown(name) for name in own if _is_unknown(name)] + [
        text for text in (value_problem(environ, name) for name in own) if text
    ]


def value_problem(environ, name: str) -> str:
    """What is wrong with the value of a known variable, or ""."""
    value = environ.get(name, "")
    shown = f"{name}={value[:SHOWN_MAX]!r}"
    if name in SWITCHES and value.strip().lower() not in ("", "0", *ON):
        return f"{shown}: want 0 or 1; taken as {SWITCHES[name]}"
    if name == "GOODPUT_NCCL" and value not in NCCL_VALUES:
        return f"{shown}: want 0, or calls; calls and transfers are recorded"
    if name == "GOODPUT_DEEP_LOOK_RANK" and not (value.strip() in ("", "all") or value.strip().isdigit()):
        return f"{shown}: want a rank, or all; no rank has deep looks"
    if name in ("GOODPUT_WORLD_SIZE", "GOODPUT_LOCAL_RANK") and value and not environ.get("GOODPUT_RANK"):
        return f"{shown}: ignored without GOODPUT_RANK"
    return ""


def _is_unknown(name: str) -> bool:
    if name in KNOWN or name.startswith("GOODPUT_TEST_"):  # the latter are of the project's own tests
        return False
    return not any(part in name for part in _OF_SERVICES)


def _unknown(name: str) -> str:
    from difflib import get_close_matches  # Here, since it takes longer than all of this.

    near = get_close_matches(name, sorted(KNOWN), 1, 0.8)
    shown = "".join(c if c.isprintable() else "?" for c in name[:SHOWN_MAX])
    return f"{shown} is no variable of goodput" + (
        f"; did you mean {near[0]}?" if near else "; it is ignored"
    )
