"""On the path of every Python that tests start."""
