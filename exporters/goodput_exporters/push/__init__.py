"""Reports to the aggregator: the pusher, its backlog and its credentials."""
