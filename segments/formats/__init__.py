"""The payloads of record batches: ours in columns, and Kafka's of each version."""
