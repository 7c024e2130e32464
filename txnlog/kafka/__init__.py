"""Partition folders of a Kafka broker, in and out: what goes between a store and a Kafka cluster."""
