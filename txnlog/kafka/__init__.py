"""Partition folders of a Kafka broker, in and out."""
