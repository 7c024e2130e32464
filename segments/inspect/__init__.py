"""Segments and indexes as they are: dumped, verified, rebuilt."""
