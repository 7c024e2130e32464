"""Batch reads and writes: pinned and planned on the driver's side, streamed by tasks."""
