"""Stored data as it is: logs, segments and indexes of a store, and files outside one."""
