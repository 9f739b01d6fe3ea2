"""Hydra launcher `rlexp_slurm`, which `cluster=slurm` chooses: jobs of `-m` as jobs of a Slurm cluster."""
