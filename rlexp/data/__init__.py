"""Tasks: where they come from, that they are usable, and in which order they are seen. No torch."""
