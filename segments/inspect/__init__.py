"""Segments and indexes as they lie: shown, checked, built anew."""
