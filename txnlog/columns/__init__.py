"""The columns of typed topics: valid ones, their changes, and their names in files."""
