"""Records that are hard to read right, and all that reads them."""
