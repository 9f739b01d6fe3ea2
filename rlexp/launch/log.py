"""Where messages of the package go: train.log, and the console of rank 0."""

from __future__ import annotations

import faulthandler
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

PACKAGE = "rlexp"
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _FileHandler(logging.StreamHandler):
    """Writes to train.log. What no longer fits on a full disk is left out there: the console has it, and logging's own report of it is a traceback."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


class _ConsoleHandler(logging.StreamHandler):
    """Writes to whatever sys.stderr is at the moment: a progress bar replaces it so that messages appear above the bar."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        return text if record.levelno <= logging.INFO else f"{record.levelname.lower()}: {text}"


@contextmanager
def logging_to(path: Path, console: bool = True) -> Iterator[None]:
    """Send messages of the package to a file (appended) and, with console, to stderr, until the context ends.

    A crash inside native code writes the Python stack to the file too.
    """
    logger = logging.getLogger(PACKAGE)
    stream = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed when the context ends)
    file = _FileHandler(stream)
    file.setFormatter(logging.Formatter(_FORMAT))
    handlers: list[logging.Handler] = [file, *([_ConsoleHandler()] if console else [])]
    before = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False  # whoever configured the root logger would print everything a second time
    for handler in handlers:
        logger.addHandler(handler)
    crashes = not faulthandler.is_enabled()  # else somebody (PYTHONFAULTHANDLER, pytest) wants them elsewhere
    if crashes:
        faulthandler.enable(stream)
    try:
        yield
    finally:
        if crashes:
            faulthandler.disable()
        for handler in handlers:
            logger.removeHandler(handler)
        with suppress(OSError):  # a last line that does not fit
            stream.close()
        logger.level, logger.propagate = before
