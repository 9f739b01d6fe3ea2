"""Rewards: the calling convention of user functions, and the functions that are shipped. No torch."""
