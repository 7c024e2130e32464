"""Logs that settle soon, and writers that meet in them."""
