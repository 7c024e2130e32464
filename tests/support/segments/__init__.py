"""Segments: samples, damage, and decoders that share no code with txnlog."""
