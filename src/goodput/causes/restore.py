"""Loading checkpoints."""

STATE = "restore"
ADVICE = "Load shards in parallel from local or memory-backed storage instead of one file over the network."
