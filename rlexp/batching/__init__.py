"""Samples to rows: prefix tries under a token budget. NumPy only."""
