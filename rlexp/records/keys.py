"""Keyed randomness: every draw is a pure function of what it is for, so nothing depends on order, timing or global state.

`key(seed, purpose, ...)` hashes its parts with BLAKE2b to 64 bits; `uniforms(keys, counter)` turns keys and a token index into
numbers in [0, 1) with the SplitMix64 finaliser (Steele, Lea, Flood 2014).
"""

from __future__ import annotations

import hashlib

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def key(*parts: object) -> int:
    """A 64-bit key of the parts (numbers and strings), e.g. key(run_seed, "sample", epoch, task, rollout, turn)."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def uniforms(keys: np.ndarray, counter: int | np.ndarray) -> np.ndarray:
    """Numbers in [0, 1), float64 [n], for uint64 keys [n] and a counter (scalar or [n]), e.g. the token index."""
    with np.errstate(over="ignore"):
        z = np.asarray(keys, dtype=np.uint64) + (np.asarray(counter, dtype=np.uint64) + np.uint64(1)) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _MIX_1
        z = (z ^ (z >> np.uint64(27))) * _MIX_2
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def generator(*parts: object) -> np.random.Generator:
    """A NumPy generator for bulk draws (shuffles, task generation), seeded by the parts."""
    return np.random.Generator(np.random.Philox(key(*parts)))
