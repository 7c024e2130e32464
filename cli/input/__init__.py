"""User input: positions in a log, ranges, durations, options, config files."""
