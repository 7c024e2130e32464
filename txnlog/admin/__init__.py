"""What an operator asks of a store, and does to it."""
