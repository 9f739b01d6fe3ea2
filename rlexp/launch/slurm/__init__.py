"""cluster=slurm: what is submitted, what the queue says, what runs in a job, and the sweep around it."""
