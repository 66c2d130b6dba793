"""How much of a prefix that was computed before a request finds in the cache."""

MIN_COPIED = 8


def found(tokens: int, block_len: int) -> int:
    """Return how many of the first ``tokens`` tokens are reused: of the last block, too few are not worth a copy."""
    in_last = tokens % block_len
    return tokens if in_last >= MIN_COPIED else tokens - in_last
