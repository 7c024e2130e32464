"""Output: fields, tables, JSON, messages, progress, exit codes."""
