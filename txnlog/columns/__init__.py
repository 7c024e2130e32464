"""The columns of typed topics: which there can be, how they change, what files call them."""
