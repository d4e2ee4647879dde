"""No step progress for a long time."""

STATE = "stall"


def advise(account) -> str:
    return (
        "Find who hung: ranks inside communication are waiting, the others are suspects. A "
        "shorter collective timeout ends such a run earlier."
    )
