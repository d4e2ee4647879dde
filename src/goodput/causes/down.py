"""No live process between attempts."""

STATE = "down"


def advise(account) -> str:
    return (
        "Restart faster: keep spare nodes and a warm image, restart in place where the node is "
        "healthy, and set an alert for a run that is down."
    )
