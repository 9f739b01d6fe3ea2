"""Weights to servers of the same machine through shared memory, or to other machines through a folder that both see. Any device."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rlexp.config.errors import UserError
from rlexp.generation.vllm_server.control import Refused
from rlexp.generation.weight_sync.base import Named

ALIGNMENT = 64
"""Tensors start at multiples of so many bytes, as kernels like it"""
RAM = Path("/dev/shm")


class Control(Protocol):
    """Calls to all servers at once (rlexp.generation.vllm_server.control)."""

    def everywhere(self, path: str, body: dict[str, Any]) -> None:
        """POST to each server; returns when all have answered. Raises when one cannot."""
        ...


class Transfer(Protocol):
    """Carries named tensors to the servers, between start_weight_update and finish_weight_update."""

    def send(self, tensors: Iterator[Named]) -> int:
        """Send them all. Returns the bytes that travelled."""
        ...

    def forget(self) -> None:
        """The servers are new ones and know nothing of us."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


def buckets(tensors: Iterator[Named], limit: int) -> Iterator[list[Named]]:
    """Tensors in order, as many together as fit into `limit` bytes; a larger one is alone. Holds one bucket at a time."""
    held: list[Named] = []
    size = 0
    for name, tensor in tensors:
        bytes_ = padded(tensor)
        if held and size + bytes_ > limit:
            yield held
            held, size = [], 0
        held.append((name, tensor))
        size += bytes_
    if held:
        yield held


def padded(tensor: Tensor) -> int:
    """Bytes a tensor takes in a bucket."""
    return -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT


def pack(bucket: Sequence[Named], memory: Any, start: int = 0) -> dict[str, Any]:
    """Copy a bucket's tensors into memory, from a place on; returns the description that `engine_plugin.unpack` reads.

    By NumPy, in one thread: torch would share each copy among threads, and wait for the one whose core an engine on this machine keeps busy.
    """
    place = np.frombuffer(memory, np.uint8)
    offsets, offset = [], start
    for _, tensor in bucket:
        offsets.append(offset)
        if tensor.numel():
            data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
            place[offset : offset + data.nbytes] = data
        offset += padded(tensor)
    return {
        "names": [name for name, _ in bucket],
        "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in bucket],
        "shapes": [list(tensor.shape) for _, tensor in bucket],
        "offsets": offsets,
    }


class SharedMemory:
    """One file in memory, mapped by trainer and servers, whose two halves are filled with bucket after bucket: one while the servers read the other.

    Its name exists only until all servers have opened it, so nothing is left whoever dies.
    """

    def __init__(self, control: Control, limit: int, folder: Path | None = None) -> None:
        """limit: bytes of a bucket. folder: where the file is made; None: the machine's memory file system, else its folder for temporary files."""
        self.control, self.limit = control, limit
        self.folder = folder or (RAM if RAM.is_dir() else Path(tempfile.gettempdir()))
        self._memory: mmap.mmap | None = None
        self._half, self._path = 0, ""
        self._reading = ThreadPoolExecutor(1, "weights")

    def send(self, tensors: Iterator[Named]) -> int:
        """Send them all, one bucket after the other."""
        self._make_sure()
        sent = 0
        reading: Future[None] | None = None

        def read() -> None:
            if reading is not None:
                reading.result()

        try:
            for number, bucket in enumerate(buckets(tensors, self.limit)):
                need = sum(padded(tensor) for _, tensor in bucket)
                if self._memory is None or need > self._half:
                    read()
                    self._open(max(need, self.limit))
                described = pack(bucket, self._memory, number % 2 * self._half)
                read()
                reading = self._reading.submit(self.control.everywhere, "update_weights", {"update_info": described})
                sent += need
        finally:
            read()
        return sent

    def forget(self) -> None:
        """The next bucket opens a new file."""
        self._memory, self._half = None, 0

    def close(self) -> None:
        """Free the memory, once no tensor looks at it any more."""
        self.forget()
        self._reading.shutdown(wait=False)

    def _make_sure(self) -> None:
        """Forget the memory if a server reads that of another trainer by now, or is a new one: by its name it cannot be opened again."""
        if self._memory is None:
            return
        try:
            self.control.everywhere("init_weight_transfer_engine", {"init_info": {"path": self._path, "size": 2 * self._half}})
        except Refused:
            self.forget()

    def _open(self, half: int) -> None:
        size = 2 * half
        try:
            handle, path = tempfile.mkstemp(prefix="rlexp-weights-", dir=self.folder)
        except OSError as error:
            raise UserError(f"{self.folder} cannot be written ({error.strerror}): set generation.weight_transfer=folder with another folder") from error
        try:
            try:
                os.posix_fallocate(handle, 0, size)  # a full file system says so here; writing into the mapping would kill the process
            except OSError as error:
                raise UserError(
                    f"{self.folder} has no room for {size / 2**20:.0f} MiB of weights ({error.strerror}): lower generation.bucket_mib, make it larger, "
                    "or set generation.weight_transfer=folder"
                ) from error
            self._memory, self._half, self._path = mmap.mmap(handle, size), half, path
            self.control.everywhere("init_weight_transfer_engine", {"init_info": {"path": path, "size": size}})
        finally:
            os.close(handle)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


class Folder:
    """A new file for each bucket in a folder that all machines see, removed when every server has read it.

    A network file system shows a file complete to who opens it after it was closed; one that is written again it may show old.
    """

    def __init__(self, control: Control, limit: int, folder: Path) -> None:
        self.control, self.limit, self.folder = control, limit, folder
        if not folder.is_dir():
            raise UserError(f"generation.transfer_folder={folder} does not exist: make it, visible to trainer and servers under this path")

    def send(self, tensors: Iterator[Named]) -> int:
        """Send them all, one bucket after the other."""
        sent = 0
        for bucket in buckets(tensors, self.limit):
            need = sum(padded(tensor) for _, tensor in bucket)
            memory = bytearray(max(need, 1))
            described = pack(bucket, memory)
            handle, path = tempfile.mkstemp(prefix="rlexp-weights-", dir=self.folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(memory)
                    os.fchmod(file.fileno(), 0o644)  # the server may be another user's
                    file.flush()
                    os.fsync(file.fileno())
                self.control.everywhere("update_weights", {"update_info": {**described, "path": path}})
            finally:
                os.unlink(path)
            sent += need
        return sent

    def forget(self) -> None:
        """Nothing to do: each bucket names its file."""

    def close(self) -> None:
        """Nothing is held."""
