"""What users give as options, parsed into typed values."""
