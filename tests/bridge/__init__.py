"""Bridges to Kafka."""
