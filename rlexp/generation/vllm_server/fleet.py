"""The servers of a run: started or found by rank 0, known to every rank, started again when they die."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from rlexp.config.errors import PeerError, UserError
from rlexp.config.vllm import lora_rank
from rlexp.config.vllm_server import LOOPBACK, VLLMServerGenerationConfig, urls
from rlexp.generation.base import Policy, free_form
from rlexp.generation.inference import causal_model
from rlexp.generation.vllm.folder import check_model, write_model_folder
from rlexp.generation.vllm.generator import engine_dtype
from rlexp.generation.vllm_server import checks
from rlexp.generation.vllm_server.client import Server
from rlexp.generation.vllm_server.command import Served, server_command, server_environment
from rlexp.generation.vllm_server.control import Control
from rlexp.generation.vllm_server.node import NodeServer, ended_code
from rlexp.generation.vllm_server.process import LaunchedServer, ServerProcess, free_port
from rlexp.generation.vllm_server.target import ServerTarget
from rlexp.generation.weight_sync.base import TrainerSide
from rlexp.generation.weight_sync.shared_memory import Folder, SharedMemory, Transfer
from rlexp.records.server_nodes import ServerNodes

T = TypeVar("T")
LOOK = 0.5
"""Seconds between two looks whether a launched server is there"""
log = logging.getLogger(__name__)


class Fleet:
    """What is launched is owned by rank 0; the other ranks get addresses and process ids."""

    def __init__(self, config: VLLMServerGenerationConfig, policy: Policy, trainer: TrainerSide) -> None:
        self.config, self.policy, self.trainer = config, policy, trainer
        self.more = free_form(config.engine_kwargs, "generation.engine_kwargs")
        self._scratch = tempfile.TemporaryDirectory(prefix="rlexp_servers_") if trainer.folder is None and trainer.rank == 0 else None
        self.folder = Path(self._scratch.name) if self._scratch else (trainer.folder or Path()) / "servers"
        self.dtype = engine_dtype(config.dtype, trainer.dtype)
        self.context = min(config.max_model_length or policy.context, policy.context)
        self.model = ""
        """name of the model without an adapter"""
        self.processes: list[LaunchedServer] = []
        self.nodes = ServerNodes.given() if config.launch else None
        self.restarts = 0

    def open(self) -> None:
        """Start or find the servers. Raises UserError on every rank."""
        found, self.context, self.model = self._on_first(self._launch if self.config.launch else self._attach)
        self._use(found)

    def recover(self) -> bool:
        """Start again the servers that died, if there are some and generation.restart allows it. Returns whether it did, on every rank alike."""
        found = self._on_first(self._restart_dead)
        if found is None:
            return False
        self.close(processes=False)
        self.restarts += 1
        self._use(found)
        return True

    def close(self, processes: bool = True) -> None:
        """Let go of the servers; end those that were started. A second call does nothing."""
        self.target.transfer.close()
        self.control.close()
        if processes:
            for process in self.processes:
                process.stop()
            self.processes = []
            if self._scratch is not None:
                self._scratch.cleanup()

    # rank 0

    def _launch(self) -> tuple[list[tuple[str, int]], int, str]:
        if self.config.host not in LOOPBACK:
            log.warning(
                "generation.expose=true: whoever reaches port %s of %s can replace the weights of this run's servers, vLLM asks for no password",
                self.config.port or "(a free one)",
                self.config.host,
            )
        if not torch.cuda.is_available():
            check_model(self.policy, self.config)
        heads, parallel = int(causal_model(self.policy.module).config.num_attention_heads), self.config.tensor_parallel_size
        if heads % parallel:
            raise UserError(f"generation.tensor_parallel_size={parallel} does not divide the {heads} attention heads of the model: choose a divisor of {heads}")
        write_model_folder(self.policy, self.folder / "model", weights=self._adapter_rank > 0)
        try:
            for number, port in enumerate(self._ports()):
                self.processes.append(self._start(number, port))
            self._wait()
        except BaseException:
            for process in self.processes:
                process.stop()
            self.processes = []
            raise
        return self._known(), self.context, str(self.folder / "model")

    def _ports(self) -> list[int]:
        if self.nodes is not None:
            return [self.config.port or port for _, port in self.nodes.places]
        return [free_port() if self.config.port is None else self.config.port + number for number in range(self.config.servers)]

    def _start(self, number: int, port: int) -> LaunchedServer:
        slots = self._adapter_rank
        dtype, on_cpu = str(self.dtype).removeprefix("torch."), not torch.cuda.is_available()
        served = Served(str(self.folder / "model"), dtype, self.context, slots, has_weights=slots > 0, on_cpu=on_cpu)
        transfer = self._transfer_name
        host, path = self.config.host if self.nodes is None else self.nodes.places[number][0], self.folder / f"server_{number}.log"
        command = server_command(self.config, served, transfer, host=host, port=port, more=self.more)
        environment = server_environment(self.config, transfer, number)
        if self.nodes is not None:
            return NodeServer(command, environment, host=host, port=port, log=path, order=self.nodes.order(number))
        return ServerProcess(command, environment, host=host, port=port, log=path)

    def _wait(self) -> None:
        log.info("waiting for %d vLLM server%s to start (%s)", len(self.processes), "s" * (len(self.processes) > 1), self.processes[0].log)
        for process in self.processes:
            process.wait_healthy(self.config.timeout)

    def _restart_dead(self) -> list[tuple[str, int]] | None:
        dead = [number for number, process in enumerate(self.processes) if process.gone() is not None]
        if not dead:
            return None
        if self.restarts >= self.config.restart:
            return None
        for number in dead:
            log.warning("%s", self.processes[number].died())
            log.warning("starting it again (%d of generation.restart=%d)", self.restarts + 1, self.config.restart)
            self.processes[number] = self._start(number, self.processes[number].port if self.config.port is not None else free_port())
        self._wait()
        return self._known()

    def _known(self) -> list[tuple[str, int]]:
        return [(process.url, process.pid if isinstance(process, ServerProcess) else 0) for process in self.processes]

    def _attach(self) -> tuple[list[tuple[str, int]], int, str]:
        expected = checks.Expected(causal_model(self.policy.module).config, self.dtype, self.context, self._transfer_name, self._adapter_rank)
        found = [checks.check_server(url, expected, self.config, self.more) for url in urls(self.config)]
        names = {server.model for server in found}
        if len(names) > 1:
            raise UserError(f"the servers of generation.base_url serve different models ({', '.join(sorted(names))}): start them with the same one")
        return [(url, 0) for url in urls(self.config)], min(server.context for server in found), names.pop()

    # every rank

    def _use(self, found: list[tuple[str, int]]) -> None:
        self.servers = [Server(url, self._death(number, url, pid)) for number, (url, pid) in enumerate(found)]
        self.control = Control([url for url, _ in found], self.config.timeout, self._raise_if_dead)
        shared = Path(self.config.transfer_folder) if self.config.transfer_folder else self.folder
        self.target = ServerTarget(self.control, self._transfer(), self.dtype, has_base=self.config.sync_lora == "adapter", folder=shared)

    def _death(self, number: int, url: str, pid: int) -> Callable[[], Exception | None]:
        """Why a server is known to be dead: its owner asks the process, the other ranks look whether it is there."""

        asked = 0.0
        known: Exception | None = None

        def reason() -> Exception | None:
            nonlocal asked, known
            if known is None and time.monotonic() - asked > LOOK:  # many requests ask
                asked = time.monotonic()
                if number < len(self.processes):
                    known = self.processes[number].gone()
                elif self.nodes is not None and (code := ended_code(self.nodes.order(number))) is not None:
                    known = UserError(f"the vLLM server at {url} ended with code {code}; see {self.folder}")
                elif pid and not _lives(pid):
                    known = UserError(f"the vLLM server at {url} has ended; see {self.folder}")
            return known

        return reason

    def _raise_if_dead(self, patience: float) -> None:
        """Say so if a launched server has died. Its end is seen a moment after its connections break."""
        deadline = time.monotonic() + (patience if self.config.launch else 0.0)
        while True:
            for server in self.servers:
                if (error := server.dead()) is not None:
                    raise error
            if time.monotonic() >= deadline:
                return
            time.sleep(0.1)

    @property
    def _adapter_rank(self) -> int:
        """Size of the adapter that travels alone, rounded to what vLLM knows; 0: none does."""
        module: Any = self.policy.module
        return lora_rank(int(module.peft_config["default"].r)) if self.config.sync_lora == "adapter" else 0

    @property
    def _transfer_name(self) -> str:
        if self.config.weight_transfer != "auto":
            return self.config.weight_transfer
        if next(causal_model(self.policy.module).parameters()).device.type == "cuda":
            return "nccl"
        return "shared_memory" if self.nodes is None else "folder"

    def _transfer(self) -> Transfer:
        limit = self.config.bucket_mib * 2**20
        if self._transfer_name == "folder":
            return Folder(self.control, limit, self._transfer_folder())
        if self._transfer_name == "nccl":
            from rlexp.generation.weight_sync.nccl import Nccl

            return Nccl(self.control, limit, self.config.group_host if self.nodes is None else self.nodes.trainer, self.config.group_port)
        if self._transfer_name == "ipc":
            from rlexp.generation.weight_sync.ipc import Ipc

            return Ipc(self.control, limit)
        return SharedMemory(self.control, limit)

    def _transfer_folder(self) -> Path:
        """Where weights lie for the servers: what the user named, else a part of the run folder, which all nodes of a job see."""
        if self.config.transfer_folder is not None or self.nodes is None:
            return Path(self.config.transfer_folder or "")
        folder = self.folder / "weights"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _on_first(self, work: Callable[[], T]) -> T:
        """The result of rank 0's work on every rank; its error too."""
        own: Exception | None = None
        result: Any = None
        if self.trainer.rank == 0:
            try:
                result = work()
            except Exception as error:
                own = error
        failure = None if own is None else (isinstance(own, UserError), f"{own}" if isinstance(own, UserError) else f"{type(own).__name__}: {own}")
        failure, result = self.trainer.gather((failure, result))[0]
        if own is not None:
            raise own
        if failure is not None:
            raise PeerError(0, failure[1]) if failure[0] else RuntimeError(f"rank 0 failed with its servers: {failure[1]}")
        return result


def _lives(pid: int) -> bool:
    """Whether a process of this machine runs. One that ended, and whose parent has not looked yet, does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
