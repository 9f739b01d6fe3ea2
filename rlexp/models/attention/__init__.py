"""Attention over packed rows: a position sees its ancestors in the row's prefix trie and itself.

One file per way to compute it; all give the same numbers up to rounding. `interface` puts them under a transformers model.
"""
