"""The one loop, and what it is made of: plan, score, step, checkpoint, evaluation, metrics."""
