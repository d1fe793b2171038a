"""How long to wait before the next try: full jitter below a ceiling that doubles."""

import random
from typing import Final

# However often something has failed: 2**1024 is no float, and who waits for hours gets there.
DOUBLINGS_MAX: Final = 32


def ceiling_s(base_s: float, doublings: int, s_max: float) -> float:
    """`base_s` doubled so often, at most `s_max`."""
    return min(base_s * 2.0 ** min(doublings, DOUBLINGS_MAX), s_max)


def pause_s(failures: int) -> float:
    """A random pause after so many failures in a row: 0.2 s at most after the first, never more than 5 s."""
    return random.uniform(0, ceiling_s(0.1, failures, 5.0))  # noqa: S311 (jitter, not a secret)
