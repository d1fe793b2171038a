"""What Headgate says to the logging of a program in which it runs its code.

Filters and handlers there are the program's, and so are texts of errors: one that raises, as where it looks for a
text and finds a job, or where an error's `__repr__` panics, keeps no lease for ever nor a verdict from being told.
"""

import contextlib
import logging
import sys
import traceback
from typing import Any


class ProgramLog(logging.LoggerAdapter[logging.Logger]):
    """A logger that raises nothing. As of errors in handlers, the traceback goes to the standard error output."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), {})

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        try:
            super().log(level, msg, *args, **{**kwargs, "stacklevel": kwargs.get("stacklevel", 1) + 1})
        except BaseException:
            if logging.raiseExceptions and sys.stderr is not None:
                with contextlib.suppress(BaseException):
                    traceback.print_exc(file=sys.stderr)
