"""The one error of the launcher: something a person can put right, said in one line."""


class LocalError(Exception):
    """The stack cannot start or go on. The message is one line, names the cause and what to change."""
