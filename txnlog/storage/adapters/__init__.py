"""One module for each kind of filesystem; ``registry`` says which. Knows requests, no stores."""
