"""Streaming reads and writes: offsets and micro-batches, each committed once."""
