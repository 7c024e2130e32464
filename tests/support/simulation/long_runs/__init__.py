"""Long random runs of many processes over one store, and the judge of what they read."""
