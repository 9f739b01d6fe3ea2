"""Generators: token ids in, sampled ids and their log-probs out. One file per backend."""
