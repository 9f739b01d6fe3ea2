"""Which machines this process's run has, and how they reach each other."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
import subprocess
from typing import Any

from rlexp.config.cluster import ClusterConfig, SlurmClusterConfig
from rlexp.config.errors import UserError
from rlexp.launch.meeting import Meeting, meeting_of_this_job
from rlexp.launch.slurm.queue import SUBMITTED

LOOPBACK = "127.0.0.1"
TIMEOUT = 30.0
"""Seconds scontrol may take"""
_SIOCGIFADDR = 0x8915
"""ioctl for the IPv4 address of a network interface (netdevice(7))"""


def on_this_machine(config: ClusterConfig) -> Meeting | None:
    """cluster=local: no other machine."""
    return None


def in_a_slurm_job(config: ClusterConfig) -> Meeting | None:
    """cluster=slurm: where the job's nodes meet; None when it has one. Raises UserError outside of a job that the launcher submitted."""
    if SUBMITTED not in os.environ:
        raise UserError("cluster=slurm submits jobs, which needs -m: python -m rlexp.train -m cluster=slurm ...; without anything to sweep over it is one job")
    assert isinstance(config, SlurmClusterConfig)
    return meeting_of_this_job() if config.nodes + config.vllm_nodes > 1 else None


def own_address() -> str:
    """The IPv4 address under which other nodes of the Slurm job reach this one: what Slurm knows it by, resolved by the hosts file or DNS."""
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    try:
        done = subprocess.run(["scontrol", "show", "node", name], capture_output=True, text=True, timeout=TIMEOUT, check=False)
        found = re.search(r"NodeAddr=(\S+)", done.stdout)
    except (OSError, subprocess.TimeoutExpired):
        found = None
    return resolved(found[1] if found else name)


def resolved(name: str) -> str:
    """The IPv4 address of a host name. Some clouds name their machines ip-10-0-0-7, which says it without a lookup."""
    if parts := re.match(r"ip-(\d+)-(\d+)-(\d+)-(\d+)(?:\.|$)", name):
        return ".".join(parts.groups())
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise UserError(f"the address of the node {name} is unknown ({error}): neither Slurm's NodeAddr nor the hosts file gives one") from error


def interface_of(address: str) -> str | None:
    """The network interface that has an IPv4 address; None when none has, or where that cannot be asked."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request: Any = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:  # an interface without IPv4
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def network_of(address: str) -> dict[str, str]:
    """Environment that makes torch.distributed's backends listen on the interface of an address alone, unless the user chose one."""
    interface = interface_of(address)
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {} if interface is None else {name: interface for name in names if name not in os.environ}
