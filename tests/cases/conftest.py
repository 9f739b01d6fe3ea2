"""The fixtures of a user's folder, a model folder and one over a few letters."""

from __future__ import annotations

from user_cases import case, letters_folder, model_folder

__all__ = ["case", "letters_folder", "model_folder"]
