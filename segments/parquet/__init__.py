"""Segments that are Parquet files: row groups in the place of batches, the footer for indexes."""
