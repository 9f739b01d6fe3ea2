"""Typed configuration. Imports neither torch nor vllm."""
