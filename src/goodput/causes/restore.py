"""Loading checkpoints."""

STATE = "restore"


def advise(account) -> str:
    return "Load shards in parallel from local or memory-backed storage instead of one file over the network."
