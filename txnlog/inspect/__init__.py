"""What lies in a store, shown as it lies: logs, segments, indexes; also single files."""
