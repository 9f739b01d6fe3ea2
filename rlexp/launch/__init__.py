"""Run folders, their locks, rank processes, signals and jobs side by side."""
