"""Hydra launcher `rlexp_local`: jobs of `-m` side by side on this machine, each in a process and a folder of its own."""
