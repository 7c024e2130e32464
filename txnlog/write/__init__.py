"""Writing: buffers, uploads, partitioners, and the steps of a transaction."""
