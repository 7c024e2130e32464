"""Each operation on a store, suspended at each of its requests while another one runs."""
