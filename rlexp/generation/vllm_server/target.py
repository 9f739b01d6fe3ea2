"""Weights to servers by vLLM's weight-transfer protocol: pause, start, buckets, finish, resume."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from rlexp.config.errors import UserError
from rlexp.generation.vllm_server.control import Control, Refused
from rlexp.generation.weight_sync.base import PAUSED, RESUMED, Adapter, Named, SyncError
from rlexp.generation.weight_sync.fingerprint import Fingerprint
from rlexp.generation.weight_sync.shared_memory import Transfer

log = logging.getLogger(__name__)


def adapter_name(version: int) -> str:
    """Under which an adapter that travels alone is served."""
    return f"policy-{version}"


class ServerTarget:
    """The servers of a run as one target. dtype: what they compute in; tensors are sent in it."""

    shared = True

    def __init__(self, control: Control, transfer: Transfer, dtype: torch.dtype, *, folder: Path, has_base: bool = False) -> None:
        """folder: where adapters are handed over, seen by the servers too."""
        self.control, self.transfer, self.dtype, self.has_base = control, transfer, dtype, has_base
        self.folder = folder
        self.adapter: str | None = None
        """name of the one that is served"""
        self.bytes_sent = 0
        """of the last sync"""

    def receive(self, policy: str, tensors: Iterator[Named], version: int) -> None:
        """Load these tensors on every server. Requests under way wait and go on. Raises SyncError."""
        self._paused()
        try:
            self._begin()
        except Exception as error:
            raise self._failed(error, self._resumed()) from error
        try:
            self.bytes_sent = self.transfer.send((name, tensor.to(self.dtype)) for name, tensor in tensors)
            self.control.everywhere("finish_weight_update", {"weight_version": str(version)})
        except Exception as error:  # some layers are new, some old, some not there: nothing may be sampled with them
            self.transfer.forget()
            raise self._failed(error, False) from error
        self._reset_and_resume()

    def receive_adapter(self, policy: str, adapter: Adapter, version: int) -> None:
        """Serve this adapter from now on, under a name with its version. Raises SyncError, UserError.

        A name that stays would have vLLM read the files again whenever it is used.
        """
        from safetensors.torch import save_file

        from rlexp.generation.vllm.engine import write_adapter_settings

        self._paused()
        name = adapter_name(version)
        try:
            folder = self.folder / name
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / "adapter_model.safetensors"
            save_file({key: tensor.to("cpu", self.dtype).contiguous() for key, tensor in adapter.tensors.items()}, file)
            write_adapter_settings(adapter.settings, folder / "adapter_config.json")
            self.bytes_sent = file.stat().st_size
            self._forget_adapter(name)
            self.control.everywhere("v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder.resolve())})
            self.control.everywhere("update_weight_version", {"new_version": str(version)})
        except Exception as error:
            resumed = self._resumed()
            if isinstance(error, Refused) and error.status == 404:
                raise UserError(
                    "the server serves no adapters: start it with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, or set generation.sync_lora=merged"
                ) from error
            raise self._failed(error, resumed) from error
        old, self.adapter = self.adapter, name
        if old not in (None, name):
            self._forget_adapter(old)
            shutil.rmtree(self.folder / old, ignore_errors=True)
        self._reset_and_resume()

    def _forget_adapter(self, name: str) -> None:
        """On every server that has one of this name."""

        def forget(url: str) -> None:
            with contextlib.suppress(Refused):
                self.control.call(url, "POST", "v1/unload_lora_adapter", {"lora_name": name})

        self.control.each(forget)

    def version(self) -> int:
        """The lowest version any server has; -1 before the first sync."""
        found = [answer["weight_version"] for answer in self.control.get("weight_info")]
        return min((int(text) if str(text).isdigit() else -1 for text in found), default=-1)

    def checksums(self, policy: str) -> list[Mapping[str, Fingerprint]]:
        """What each server computes with; {} for one of several GPUs, [] when one was not started with our worker extension."""
        try:
            answers = self.control.each(lambda url: self.control.call(url, "POST", "collective_rpc", {"method": "rlexp_fingerprints"}))
        except Refused:
            return []
        found = [answer["results"] for answer in answers]
        return [{name: (pair[0], pair[1]) for name, pair in results[0].items()} if len(results) == 1 else {} for results in found]

    def _begin(self) -> None:
        """Start the update. One that a trainer left open when it died is closed first; this sync brings every layer it may have touched."""
        try:
            self.control.everywhere("start_weight_update")
        except Refused:
            log.warning("a weight update was left open on a server, by a trainer that died in the middle of one; it is closed and started anew")
            self.control.each(self._close_update)
            self.control.everywhere("start_weight_update")

    def _close_update(self, url: str) -> None:
        with contextlib.suppress(Refused):  # not every server has one open
            self.control.call(url, "POST", "finish_weight_update")

    def _paused(self) -> None:
        try:
            self.control.everywhere("pause?mode=keep")
        except Exception as error:
            raise self._failed(error, self._resumed()) from error

    def _reset_and_resume(self) -> None:
        """Keys and values of old weights are forgotten, those of requests under way too (they are computed again)."""
        try:
            self.control.everywhere("reset_prefix_cache?reset_running_requests=true")
        except Exception as error:
            raise self._failed(error, self._resumed()) from error
        if not self._resumed():
            raise SyncError("the weights arrived, and a server did not go on", engine=PAUSED)

    def _resumed(self) -> bool:
        """Whether every server goes on."""
        try:
            self.control.everywhere("resume")
            return not any(answer["is_paused"] for answer in self.control.get("is_paused"))
        except Exception as error:
            log.warning("a server could not be told to go on: %s", error)
            return False

    def _failed(self, error: Exception, resumed: bool) -> SyncError:
        return SyncError(f"weight sync failed: {error}", engine=RESUMED if resumed else PAUSED)
