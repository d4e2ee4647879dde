"""Several aggregators over one stream: NATS JetStream between the ingest workers and the aggregators of partitions.

Who takes and gives away which partition is decided in ownership.py, by what members.py hears, leases.py holds and the
ledger's fence.py allows.
"""
