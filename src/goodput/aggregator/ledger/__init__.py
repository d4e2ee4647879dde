"""The ledger: what must outlive the aggregator, in SQLite or PostgreSQL."""
