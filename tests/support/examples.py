"""How many examples a property test makes: few for a commit, or as HEADGATE_TEST_EXAMPLES says."""

import os


def examples(usual: int) -> int:
    """`usual`, which suits a commit, or what the environment says."""
    return int(os.environ.get("HEADGATE_TEST_EXAMPLES", usual))
