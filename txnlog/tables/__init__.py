"""A topic as a table of a lakehouse: Delta or Iceberg, over the segments as they lie."""
