"""make bench: rlexp measured beside TRL."""
