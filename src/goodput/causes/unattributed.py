"""Inside an attempt but in no phase."""

STATE = "unattributed"


def advise(account) -> str:
    return (
        "Name this time: put goodput.phase(...) around what happens between the phases, and give phases of "
        "your own a state: goodput.phase(name, state=...)."
    )
