"""Compaction: keeps the newest record of each key. Choice of segments, survivors, new files."""
