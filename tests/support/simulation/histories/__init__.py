"""Histories of real processes, and a checker of them that shares no code with txnlog."""
