"""What a run needs on each device, told from its config: memory by part and phase, tokens of a step. No weights are loaded."""
