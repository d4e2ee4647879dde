"""The log between ingest and aggregator."""
