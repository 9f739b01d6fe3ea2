"""Chat: prompts to token ids, token ids to text, turns to samples."""
