"""Reading: ranges of pinned segments, as Arrow batches, tables and files."""
