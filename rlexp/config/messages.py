"""Errors as a user should read them: one message on stderr, exit code 1, no traceback.

HYDRA_FULL_ERROR=1 shows tracebacks as well.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from hydra._internal.utils import get_args_parser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from rlexp.config.errors import UserError, listed
from rlexp.config.overrides import command_line_problems
from rlexp.config.suggest import unknown_key

_FULL = "HYDRA_FULL_ERROR"
_PRINTING = {"--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i", "--shell-completion", "-sc"}
"""Flags that print something instead of running"""


def _chain(error: BaseException) -> list[str]:
    texts = []
    cause: BaseException | None = error
    while cause is not None:
        texts.append(str(cause))
        cause = cause.__cause__
    return texts


def _hydra_text(error: BaseException) -> str:
    """Hydra's own message, its advice for programmers left out and the file and key put first."""
    text = "\n".join(_chain(error))
    file, key = re.search(r"In '([^']+)'", text), re.search(r"full_key: (\S+)", text)
    if key and (missing := re.search(r"Key '[^']+' (?:is )?not in '(\w+)'", text)):
        reason = unknown_key(key.group(1), [])
        reason = reason if "did you mean" in reason or "only" in reason else f"{key.group(1)}: unknown key of {missing.group(1)}"
    elif key and (wrong := re.search(r"Value .* of type .*", text)):
        reason = f"{key.group(1)}: {wrong.group(0)}"
    else:
        noise = re.compile(r"^(\s*(object_type|reference_type|full_key|See https?:|Set the environment|To append to).*|In '[^']+': \w+ raised.*)$")
        reason = "\n".join(dict.fromkeys(line for line in text.splitlines() if line.strip() and not noise.match(line)))
    return f"in the file {file.group(1)}.yaml: {reason}" if file else reason


def _line_problems(arguments: argparse.Namespace) -> list[str]:
    """Problems of the overrides, unless the command line names another primary config, which may hold anything."""
    elsewhere = arguments.config_path is not None or arguments.config_name is not None
    readable = not elsewhere and (arguments.config_dir is None or Path(arguments.config_dir).is_dir())
    return command_line_problems(arguments.overrides, arguments.config_dir) if readable else []


def explain(error: BaseException, arguments: argparse.Namespace) -> str:
    """The message for an error of composition: all problems of the command line, else what Hydra says."""
    problems = _line_problems(arguments)
    return listed(problems) if problems else _hydra_text(error)


def _is_sweep() -> bool:
    return bool({"-m", "--multirun"}.intersection(sys.argv[1:]))


def _check_sweep() -> None:
    """Refuse a sweep with a wrong value before its folder is made: Hydra makes it first and composes the jobs then."""
    problems = _line_problems(get_args_parser().parse_args()) if _is_sweep() else []
    if problems:
        raise UserError(listed(problems))


def guarded(program: Callable[[], None]) -> int:
    """Run a Hydra program; returns the exit code. A user's error becomes one message, a bug keeps its traceback."""
    if _PRINTING.intersection(sys.argv[1:]):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `--info ... | head` ends quietly; a run must survive a closed pipe
    wanted = os.environ.get(_FULL)
    os.environ[_FULL] = "1"  # makes Hydra raise what it would print itself, so that it can be translated
    try:
        _check_sweep()
        program()
        return 0
    except (UserError, HydraException, OmegaConfBaseException) as error:
        if wanted:
            traceback.print_exc()
        text = str(error) if isinstance(error, UserError) else explain(error, get_args_parser().parse_args())
        print(f"error: {text}", file=sys.stderr)
        return 1
    except OSError as error:
        if not _is_sweep() or error.filename is None:
            raise
        place = f"{error.filename} cannot be written ({error.strerror})"  # by Hydra, which makes the folder itself
        print(f"error: the sweep's folder: {place}: make that possible, or set RLEXP_OUTPUTS=FOLDER to keep runs elsewhere", file=sys.stderr)
        return 1
    finally:
        if wanted is None:
            del os.environ[_FULL]
        else:
            os.environ[_FULL] = wanted
