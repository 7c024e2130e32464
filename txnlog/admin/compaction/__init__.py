"""Compaction: of each key the newest record stays. What is cleaned, what stays, and its files."""
