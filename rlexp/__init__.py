"""rlexp: train language models with reinforcement learning, one experiment per command line."""

__version__ = "0.1.0"
