"""Storages and servers with faults, times and orders of their own."""
