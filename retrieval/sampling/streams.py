"""Random numbers that belong to a name, so that order and parallelism do not change them."""

from __future__ import annotations

import hashlib
import json

import numpy as np


def stream_of(seed: int, *names: str) -> np.random.Generator:
    """Return the stream of random numbers for these names, e.g. a retriever and a query's id.

    The stream starts at a hash of the seed and the names, in order. Equal arguments give equal
    numbers, whatever was drawn before; different arguments give independent numbers.

    Args:
        seed: Any whole number.
        *names: What the numbers are for; ``("a", "b")`` and ``("ab",)`` have different streams.
    """
    # JSON keeps the names apart, whatever characters they contain.
    digest = hashlib.sha256(json.dumps([int(seed), *names]).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))
