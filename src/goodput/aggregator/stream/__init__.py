"""Several aggregators over one stream: NATS JetStream between the ingest workers and the aggregators of partitions.

ownership.py decides which partitions are taken and given away, by the heartbeats of members.py, the leases of leases.py and
what the ledger's fence.py allows.
"""
