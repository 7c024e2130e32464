"""Record batches, codecs, segment files and their indexes. Knows bytes and files, no topics."""
