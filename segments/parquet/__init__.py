"""Segments that are Parquet files: row groups instead of batches, the footer instead of indexes."""
