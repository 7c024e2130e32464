"""How consumers share a group's partitions: assignors, heartbeats, members."""
