"""Several aggregators over one stream: NATS JetStream between the ingest workers and the aggregators of partitions."""
