"""What workers say to the logging of their program."""

from typing import Final

from headgate._program_log import ProgramLog

log: Final = ProgramLog("headgate._worker")
