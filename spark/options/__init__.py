"""Users' options, parsed into typed values."""
