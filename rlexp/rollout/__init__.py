"""Rollout sources decide when rollouts are made; agent loops decide how a task becomes a rollout."""
