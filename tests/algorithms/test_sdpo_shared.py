"""What algorithm=sdpo shares with every algorithm: TRL's options of SDPOConfig that have their keys in other groups are accepted with it and arrive."""

from __future__ import annotations

from typing import Any

import pytest
from doc_pages import ROOT
from run_configs import composed

from rlexp.build import build_algorithm
from rlexp.config.derived import correction_mode, rollouts_per_batch, schedule
from rlexp.config.run import RunConfig

SERVER = ("generation=vllm_server", "algorithm.teacher_model_kind=live")


def sdpo(*overrides: str) -> RunConfig:
    return composed("experiment=none", "algorithm=sdpo", "reward=[exact_match]", *overrides)


def value_of(config: Any, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(config, section), name)


@pytest.fixture
def with_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether an engine is installed does not matter to keys."""
    from rlexp.config import validate_generation, vllm_server

    for rules in (validate_generation, vllm_server):
        monkeypatch.setattr(rules, "vllm_installed", lambda: True)


@pytest.mark.rows("SDPO-057", "SDPO-058", "SDPO-060", "SDPO-062", "SDPO-063", "SDPO-064", "SDPO-068", "SDPO-076...088")
@pytest.mark.parametrize(
    ("option", "key", "default", "given"),
    [
        ((), "generation.name", "native", None),
        (("generation=transformers",), "generation.cache_implementation", None, "static"),
        (("strategy=fsdp2", "cluster.processes_per_node=2"), "strategy.gather_for_generation", True, False),
        (("data.overlong_prompt=cut_left",), "data.max_prompt_length", None, 512),
        ((), "rollout.max_completion_length", 512, 256),
        ((), "evaluation.num_generations", 0, 4),
        ((), "rollout.prompts_per_batch", 8, 4),
        ((), "trainer.steps_per_batch", 1, 16),
        (("model=hub", "model.path=a/b"), "model.revision", None, "v1"),
        (("model=hub", "model.path=a/b"), "model.trust_remote_code", False, True),
        (("model=hub", "model.path=a/b"), "model.dtype", "float32", "bfloat16"),
        (("generation=vllm",), "generation.name", "vllm", None),
        (("generation=vllm",), "generation.model_impl", "vllm", "transformers"),
        (("generation=vllm",), "generation.sleep_level", 0, 1),
        (("generation=vllm",), "generation.max_model_length", None, 1024),
        (("generation=vllm",), "generation.gpu_memory_utilization", 0.3, 0.5),
        (("generation=vllm",), "generation.tensor_parallel_size", 1, 1),
        (SERVER, "generation.name", "vllm_server", None),
        (SERVER, "generation.base_url", None, "http://127.0.0.1:8123"),
        (SERVER, "generation.host", "127.0.0.1", "localhost"),
        (SERVER, "generation.port", None, 8001),
        (SERVER, "generation.timeout", 240.0, 60.0),
        (SERVER, "generation.group_port", 51216, 51300),
    ],
)
def test_shared_options(option: tuple[str, ...], key: str, default: Any, given: Any, with_vllm: None) -> None:
    assert value_of(sdpo(*option), key) == default
    if given is not None:
        assert value_of(sdpo(*option, f"{key}={str(given).lower() if isinstance(given, bool) else given}"), key) == given


@pytest.mark.rows("SDPO-063", "SDPO-064")
def test_batches_of_the_command_line() -> None:
    """generation_batch_size 32 with 8 generations, 1 completion at a time, 2 accumulated: 16 steps."""
    config = sdpo("rollout.prompts_per_batch=4", "trainer.steps_per_batch=16")
    assert rollouts_per_batch(config) == 32 and schedule(config, 8).steps == 2 * 16


@pytest.mark.rows("SDPO-059", "SDPO-114")
def test_defaults_that_differ_are_told() -> None:
    """One default for all algorithms here; the page says what TRL's is."""
    config, page = sdpo(), (ROOT / "docs" / "from_trl.md").read_text(encoding="utf-8")
    section = page[page.index("## SDPO") :]
    assert config.optimizer.learning_rate != 5e-5 and "TRL's default is 5e-5" in section
    assert config.rollout.max_completion_length != 256 and "TRL's default is 256" in section
    assert config.model.disable_dropout is True and not config.trainer.gradient_checkpointing
    given = sdpo("optimizer.learning_rate=5e-5", "rollout.max_completion_length=256", "trainer.gradient_checkpointing=true", "trainer.precision=bf16")
    assert (given.optimizer.learning_rate, given.rollout.max_completion_length) == (5e-5, 256)


@pytest.mark.rows("SDPO-073")
def test_a_reference_for_beta_only_and_a_teacher_of_its_own() -> None:
    assert build_algorithm(sdpo()).needs.companions == {"teacher"}
    assert build_algorithm(sdpo("algorithm.beta=0.1", "algorithm.distillation_weight=0.5")).needs.companions == {"teacher", "reference"}
    assert build_algorithm(sdpo("algorithm.beta=0.1", "algorithm.distillation_weight=0")).needs.companions == {"reference"}
    assert build_algorithm(sdpo("algorithm.distillation_weight=0")).needs.companions == frozenset()


@pytest.mark.rows("SDPO-088")
def test_no_correction_of_distillation_alone(with_vllm: None) -> None:
    assert correction_mode(sdpo("generation=vllm")) == "none"


@pytest.mark.rows("SDPO-071", "SDPO-072")
def test_single_turns_of_text() -> None:
    """No tools, no environments, no images."""
    algorithm = build_algorithm(sdpo())
    assert algorithm.agent_loop is None and list(algorithm.agents) == ["policy"]


@pytest.mark.rows("SDPO-048")
@pytest.mark.parametrize("loss", ["cispo", "sapo", "luspo", "vespo"])
def test_losses_that_trl_leaves_out(loss: str) -> None:
    """The policy part takes any loss here."""
    config = sdpo(f"loss={loss}", "algorithm.distillation_weight=0.5")
    assert config.loss.name == loss and build_algorithm(config).needs.beside == {"teacher"}
