"""Roots and standbys: in folders, in simulated worlds, and as models."""
