"""Whole runs of many processes, and their judges."""
