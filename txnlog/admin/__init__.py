"""What an operator asks about a store, and does to it."""
