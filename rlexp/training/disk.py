"""A full disk, whatever library runs into it."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rlexp.config.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT)
_PROBE_BYTES = 2**20


@contextlib.contextmanager
def full_disk_explained(what: str, folder: Path, fix: str) -> Iterator[None]:
    """Raise one UserError for a full disk. what: what is being written, and where: folder, which exists. fix: what to do beside freeing space.

    Only Python itself raises OSError: safetensors has an error of its own and torch speaks of an unexpected position, so that after
    any other error a small file is written to find out.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if (error.errno in FULL) if isinstance(error, OSError) and error.errno else _is_full(folder):
            raise UserError(f"no space left on the disk for {what}: free some{fix}, then run the same command to continue") from error
        raise


def _is_full(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return error.errno in FULL
    return False
