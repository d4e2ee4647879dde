"""The states of the account: every nanosecond of an expected rank is in exactly one of them.

Their order is that of tables and pictures: useful work, waits inside a step, time around steps, time without a process,
time that is unknown.
"""

# Each state with one line for tables.
MEANINGS = {
    "productive": "compute phases of kept steps",
    "loader": "waiting for the data loader",
    "h2d": "copies to the device",
    "communication": "collectives, as long as even the last rank waited",
    "straggler": "waiting in collectives for a slower rank",
    "bubble": "a pipeline's unavoidable fill and drain",
    "launch": "the device idle because the host could not feed it",
    "checkpoint": "saving checkpoints",
    "evaluation": "evaluation",
    "rollout": "making the data of the next update with the model (reinforcement learning)",
    "compile": "compilation and first-step work",
    "startup": "from an attempt's start to its first step",
    "restore": "loading a checkpoint",
    "stall": "no step progress for too long",
    "lost": "steps that had to be done again, or never finished",
    "down": "no live process",
    "queue": "waiting for the scheduler",
    "unattributed": "inside an attempt, in no phase",
    "unobserved": "an expected rank without a report",
}
STATES = tuple(MEANINGS)
INDEX = {state: i for i, state in enumerate(STATES)}
PRODUCTIVE, COMMUNICATION, COMPILE = INDEX["productive"], INDEX["communication"], INDEX["compile"]
CHECKPOINT, STALL, ROLLOUT = INDEX["checkpoint"], INDEX["stall"], INDEX["rollout"]
UNATTRIBUTED = INDEX["unattributed"]
BEGINNING = tuple(INDEX[state] for state in ("startup", "restore", "compile"))  # of an attempt

PHASE_STATES = {
    "none": "unattributed",
    "loader": "loader",
    "h2d": "h2d",
    "forward": "productive",
    "backward": "productive",
    "optimizer": "productive",
    "communication": "communication",
    "checkpoint": "checkpoint",
    "restore": "restore",
    "evaluation": "evaluation",
    "compile": "compile",
    "rollout": "rollout",
}
# States that a user's phase may map to; the account alone decides the others.
USER_STATES = (*sorted(set(PHASE_STATES.values())), "startup")
# Time in these states is planned, so it is no stall.
PLANNED = ("checkpoint", "evaluation", "rollout", "restore", "compile")


def state_of(phase: str, user_states: dict[str, str]) -> int:
    """Index of the state that a phase maps to."""
    state = PHASE_STATES.get(phase) or user_states.get(phase)
    # Only a run log has `launch` as a phase.
    if state is None or not (state in USER_STATES or phase == state == "launch"):
        return UNATTRIBUTED
    return INDEX[state]


def vector() -> list[int]:
    """Nanoseconds per state, all zero."""
    return [0] * len(STATES)


# Shared by what has time in no state; it must not change.
NOTHING = vector()


def fit(gap: list[int], inside: list[int], spent_ns: int) -> None:
    """Make both vectors non-negative and their sum `spent_ns`.

    An excess is cut in proportion; missing time is unattributed.
    """
    for part in (gap, inside):
        part[:] = [max(ns, 0) for ns in part]
    known = sum(gap) + sum(inside)
    if known > spent_ns:
        both = share(gap + inside, spent_ns, known)
        gap[:], inside[:] = both[: len(gap)], both[len(gap) :]
    gap[INDEX["unattributed"]] += spent_ns - sum(gap) - sum(inside)


def share(states: list[int], part_ns: int, whole_ns: int) -> list[int]:
    """`states` scaled from sum `whole_ns` to sum `part_ns`, exactly."""
    if not whole_ns or not part_ns:
        return [0] * len(states)
    scaled = [ns * part_ns // whole_ns for ns in states]
    scaled[states.index(max(states))] += part_ns - sum(scaled)
    return scaled


def move(states: list[int], sources, target: int) -> None:
    """Move all time of the source states into the target state."""
    moved = 0
    for i in sources:
        if i != target:
            moved += states[i]
            states[i] = 0
    states[target] += moved
