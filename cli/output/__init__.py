"""What users see: fields, tables, JSON, messages, progress, exit codes."""
