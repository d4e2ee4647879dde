"""No live process between attempts."""

STATE = "down"
ADVICE = (
    "Restart faster: keep spare nodes and a warm image, restart in place where the node is healthy, and set "
    "an alert for a run that is down."
)
