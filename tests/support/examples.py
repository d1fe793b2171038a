"""How many examples a property test makes: few for a commit, or as HEADGATE_TEST_EXAMPLES says."""

import os


def examples(usual: int, *, nightly: int | None = None) -> int:
    """`usual`, which suits a commit. Where the environment says a number: that, or `nightly` if it is more."""
    said = os.environ.get("HEADGATE_TEST_EXAMPLES")
    return usual if said is None else max(int(said), nightly or 0)
