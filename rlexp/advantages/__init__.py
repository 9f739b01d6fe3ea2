"""Rewards to advantages. NumPy float64, flat over all rollouts at hand; groups are found by key, never by position."""
