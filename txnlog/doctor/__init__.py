"""Examines a store by the rules of docs/PROTOCOL.md. Changes nothing, and decides nothing."""
