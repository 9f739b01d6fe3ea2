"""Plain dataclasses that travel between rooms. NumPy only, no torch.

Shape suffixes: `_T` forwarded positions of a row, `_L` loss terms, `_S` samples, `_R` rollouts, `_K` candidates or one chunk of
terms, `_V` vocabulary.
"""
