"""Weights to servers: buckets, the order of the calls, and what is said after a failure. Real loading is tested with an engine."""

from __future__ import annotations

import base64
import pickle
import threading
from pathlib import Path

import pytest
import torch
from server_fake import FakeServer

from rlexp.config.errors import UserError
from rlexp.generation.vllm_server.control import Control, Refused
from rlexp.generation.vllm_server.target import ServerTarget
from rlexp.generation.weight_sync.base import PAUSED, RESUMED, Adapter, SyncError
from rlexp.generation.weight_sync.engine_plugin import Bucket, Mapped, unpack
from rlexp.generation.weight_sync.ipc import Ipc
from rlexp.generation.weight_sync.nccl import Nccl
from rlexp.generation.weight_sync.shared_memory import Folder, SharedMemory, buckets, pack, padded

START, FINISH, UPDATE, INIT = "start_weight_update", "finish_weight_update", "update_weights", "init_weight_transfer_engine"
RESET = "reset_prefix_cache?reset_running_requests=true"


@pytest.fixture
def fake():
    server = FakeServer()
    yield server
    server.close()


def named() -> list[tuple[str, torch.Tensor]]:
    made = torch.Generator().manual_seed(0)
    shapes = {"a": (3, 5), "b": (7,), "empty": (0, 4), "scalar": (), "large": (40, 10)}
    tensors = [(name, torch.randn(shape, generator=made)) for name, shape in shapes.items()]
    return [*tensors, ("half", torch.randn(9, generator=made).bfloat16()), ("turned", torch.randn(4, 6, generator=made).T)]


def equal(found: list[tuple[str, torch.Tensor]], expected: list[tuple[str, torch.Tensor]]) -> bool:
    return [name for name, _ in found] == [name for name, _ in expected] and all(
        a.dtype == b.dtype and torch.equal(a, b) for (_, a), (_, b) in zip(found, expected, strict=True)
    )


def test_buckets_hold_what_fits_and_a_larger_tensor_alone():
    sizes = [[name for name, _ in bucket] for bucket in buckets(iter(named()), 256)]
    assert sizes == [["a", "b", "empty", "scalar"], ["large"], ["half", "turned"]]
    assert all(sum(padded(tensor) for _, tensor in bucket) <= 256 for bucket in buckets(iter(named()[:4]), 256))


def test_buckets_read_no_further_than_they_must():
    """A stream is never held as a whole: before the second bucket is asked for, at most its first tensor was read."""
    read = []

    def stream():
        for name, tensor in named():
            read.append(name)
            yield name, tensor

    next(buckets(stream(), 256))
    assert read == ["a", "b", "empty", "scalar", "large"]


def test_what_is_packed_is_unpacked_and_stays_when_the_memory_is_used_again():
    memory = bytearray(4096)
    described = pack(named(), memory)
    found = unpack(Bucket(**described), memory)
    memory[:] = bytes(4096)
    assert equal(found, named())


class Reads:
    """Control that does what a server's engine does, so that the bytes really travel."""

    def __init__(self) -> None:
        self.mapped, self.found, self.calls, self.paths = Mapped(), [], [], []

    def everywhere(self, path, body) -> None:
        self.calls.append(path)
        if path == INIT:
            asked = Mapped(**body["init_info"])
            if asked.path != self.mapped.path:
                if not Path(asked.path).exists():
                    raise Refused("no such file", 500)
                self.mapped = asked
                self.paths.append(self.mapped.path)
                self.mapped.open()
            return
        bucket = Bucket(**body["update_info"])
        if bucket.path is not None:
            self.paths.append(bucket.path)
        memory = self.mapped.memory if bucket.path is None else bytearray(Path(bucket.path).read_bytes())
        self.found += unpack(bucket, memory)


@pytest.mark.parametrize("kind", ["shared_memory", "folder"])
def test_all_tensors_arrive_and_no_file_is_left(tmp_path, kind):
    reads = Reads()
    transfer = SharedMemory(reads, 256, tmp_path) if kind == "shared_memory" else Folder(reads, 256, tmp_path)
    for _ in range(2):
        reads.found = []
        sent = transfer.send(iter(named()))
        assert equal(reads.found, named())
        assert sent == sum(padded(tensor) for _, tensor in named())
    transfer.close()
    assert list(tmp_path.iterdir()) == [] and all(not Path(path).exists() for path in reads.paths)
    if kind == "shared_memory":  # opened for the first bucket, and once more for the tensor larger than it; the second sync asks whether it is still there
        assert reads.calls.count(INIT) == 3 and len(reads.paths) == 2


def test_two_trainers_of_one_server_do_not_read_each_others_memory(tmp_path):
    """Each sync asks for its own memory; where another trainer's is mapped, a new one is opened."""
    reads = Reads()
    first, second = SharedMemory(reads, 2048, tmp_path), SharedMemory(reads, 2048, tmp_path)
    for number, transfer in enumerate((first, second, first, first)):
        reads.found = []
        transfer.send((name, tensor + number) for name, tensor in named())
        assert equal(reads.found, [(name, tensor + number) for name, tensor in named()])
    assert len(reads.paths) == 3 and list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(UserError, match=r"transfer_folder=.* does not exist: make it"):
        Folder(Reads(), 256, tmp_path / "none")


def test_memory_without_room_is_told(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(UserError, match=r"has no room for .* MiB of weights .*lower generation\.bucket_mib"):
        SharedMemory(Reads(), 256, tmp_path).send(iter(named()))
    assert list(tmp_path.iterdir()) == []


def target(*servers: FakeServer, folder: Path = Path()) -> ServerTarget:
    control = Control([server.url for server in servers], 5.0)
    return ServerTarget(control, SharedMemory(control, 256), torch.float32, folder=folder)


def test_the_order_of_a_sync_and_the_version_read_back(fake):
    """pause, load, prefix cache, resume; every server gets everything."""
    other = FakeServer()
    sync = target(fake, other)
    assert sync.version() == -1
    sync.receive("policy", iter(named()), 3)
    expected = ["pause?mode=keep", START, INIT, UPDATE, INIT, UPDATE, UPDATE, FINISH, RESET, "resume"]
    assert fake.paths == expected == other.paths
    assert sync.version() == 3 and sync.bytes_sent > 0
    other.state.version = "2"
    assert sync.version() == 2, "the lowest of several servers"
    other.close()


def test_tensors_are_sent_in_the_dtype_of_the_engine(fake):
    control = Control([fake.url], 5.0)
    ServerTarget(control, SharedMemory(control, 2**16), torch.bfloat16, folder=Path()).receive("policy", iter(named()), 1)
    assert set(fake.bodies(UPDATE)[0]["update_info"]["dtypes"]) == {"bfloat16"}


@pytest.mark.parametrize(("call", "state"), [("pause", RESUMED), (START, RESUMED), (UPDATE, PAUSED), (FINISH, PAUSED), ("reset_prefix_cache", RESUMED)])
def test_a_failed_sync_leaves_the_server_resumed_or_says_that_it_is_paused(fake, call, state):
    """Half-loaded weights are never sampled with; before and after the loading the server goes on."""
    sync = target(fake)
    fake.state.status[call] = 500
    with pytest.raises(SyncError, match=rf"(?s)code 500.*\(the engine is {state}\)") as error:
        sync.receive("policy", iter(named()), 1)
    assert error.value.engine == state and fake.state.paused == (state == PAUSED)
    fake.state.status.clear()
    sync.receive("policy", iter(named()), 2)
    assert not fake.state.paused and sync.version() == 2, "the next sync brings it back"


def test_a_tensor_that_cannot_be_read_leaves_the_server_paused_and_says_so(fake):
    def stream():
        yield named()[0]
        raise RuntimeError("gathering failed")

    with pytest.raises(SyncError, match=r"gathering failed \(the engine is paused\)"):
        target(fake).receive("policy", stream(), 1)


def test_an_update_that_a_dead_trainer_left_open_is_closed_first(fake):
    """The refusal of the start ends its connection too, which the next call must not be sent on."""
    fake.state.updating = fake.state.abrupt = True
    target(fake).receive("policy", iter(named()[:1]), 5)
    assert fake.paths[:4] == ["pause?mode=keep", START, FINISH, START] and fake.state.version == "5"


def test_an_adapter_travels_alone(fake, tmp_path):
    sync = target(fake, folder=tmp_path)
    adapter = Adapter({"r": 8, "target_modules": {"q_proj"}}, {"x.lora_A.weight": torch.ones(2, 3)})
    sync.receive_adapter("policy", adapter, 4)
    assert fake.paths == ["pause?mode=keep", "v1/unload_lora_adapter", "v1/load_lora_adapter", "update_weight_version", RESET, "resume"]
    sent = fake.bodies("v1/load_lora_adapter")[0]
    assert sent == {"lora_name": "policy-4", "lora_path": str(tmp_path / "policy-4")}
    assert sync.version() == 4 and 0 < sync.bytes_sent < 500 and sync.adapter == "policy-4"
    sync.receive_adapter("policy", adapter, 5)
    assert [path.name for path in tmp_path.iterdir()] == ["policy-5"]
    assert fake.bodies("v1/unload_lora_adapter")[-1] == {"lora_name": "policy-4"}
    fake.state.status["v1/load_lora_adapter"] = 404
    with pytest.raises(UserError, match="start it with --enable-lora"):
        sync.receive_adapter("policy", adapter, 6)
    assert not fake.state.paused and sync.adapter == "policy-5"


def test_nccl_tells_the_servers_what_comes_while_it_is_broadcast(fake):
    """Up to the HTTP calls: the group and the broadcast need GPUs (scripts/gpu_check.py)."""
    other, sent, met = FakeServer(), [], []

    class Group:
        destroyed = False

        def destroy(self):
            self.destroyed = True

    group = Group()

    def join(host, port, world):
        met.append((host, port, world))
        return group

    control = Control([fake.url, other.url], 5.0)
    transfer = Nccl(control, 256, "10.0.0.1", 51216, join, lambda bucket, *_: sent.extend(bucket))
    for _ in range(2):
        transfer.send(iter(named()))
    assert met == [("10.0.0.1", 51216, 5)], "one trainer and two workers on each server"
    infos = [server.bodies(INIT)[0]["init_info"] for server in (fake, other)]
    assert [info["rank_offset"] for info in infos] == [1, 3] and {info["world_size"] for info in infos} == {5}
    assert equal(sent, named() * 2)
    assert [name for body in fake.bodies(UPDATE) for name in body["update_info"]["names"]] == [name for name, _ in named()] * 2
    assert set(fake.bodies(UPDATE)[0]["update_info"]) == {"names", "dtype_names", "shapes"}
    transfer.forget()
    assert group.destroyed
    other.close()


def test_ipc_hands_over_pickled_handles(fake):
    transfer = Ipc(Control([fake.url], 5.0), 256, lambda tensor: ("GPU-1", tensor.shape))
    transfer.send(iter(named()))
    assert fake.paths == [INIT, UPDATE, UPDATE, UPDATE] and fake.bodies(INIT)[0] == {"init_info": {"packed": False}}
    info = fake.bodies(UPDATE)[1]["update_info"]
    assert pickle.loads(base64.b64decode(info["ipc_handles_pickled"])) == [{"GPU-1": torch.Size([40, 10])}]
    assert info["names"] == ["large"] and info["dtype_names"] == ["float32"]


def test_a_server_that_stops_answering_in_a_sync_is_told_within_the_deadline(fake):
    fake.state.silent = True
    control = Control([fake.url], 0.5)
    sync = ServerTarget(control, SharedMemory(control, 256), torch.float32, folder=Path())
    threading.Timer(3.0, setattr, (fake.state, "silent", False)).start()
    with pytest.raises(SyncError, match="does not answer pause"):
        sync.receive("policy", iter(named()), 1)
