"""What a run tells the outside: metrics.jsonl, rollouts, the console and trackers. No torch."""
