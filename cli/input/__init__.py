"""What users type: places in a log, ranges, durations, options, config files."""
