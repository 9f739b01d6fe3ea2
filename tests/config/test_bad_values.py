"""Values that cannot be meant: one line that names the key and the fix, before torch is imported.

All of them go through the functions that the program calls; one of each kind (PROCESSES) ends a real process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlexp.config.errors import UserError
from rlexp.config.overrides import command_line_problems
from rlexp.config.run import RunConfig
from rlexp.config.validate import problems

TESTS = Path(__file__).resolve().parents[1]
BAD: dict[str, list[tuple[str, str]]] = {
    # row -> (command line, what the one line must hold)
    "GRPO-027": [("loss=ppo", "loss=ppo: no such option"), ("loss.loss_type=dapo", "loss.loss_type: unknown key")],
    "GRPO-028": [("algorithm=grop", "algorithm=grop: no such option; did you mean grpo")],
    "GRPO-255": [("rollout.generation_batch_size=8", "rollout.generation_batch_size: unknown key")],
    "GRPO-256": [
        ("algorithm.num_generations=1", "algorithm.num_generations=1 is out of range: it must be >= 2"),
        ("trainer.steps_per_batch=3", "trainer.steps_per_batch=3 does not divide rollout.prompts_per_batch=16 x algorithm.num_generations=8"),
        ("evaluation.num_generations=-1", "evaluation.num_generations=-1 is out of range"),
    ],
    "GRPO-257": [
        ("reward.terms.exact_match.weight=[1,2]", "reward.terms.exact_match.weight=[1, 2] has the wrong type: it must be a number"),
        ("reward.terms.overlong.weight=1", "reward.terms.overlong"),
        ("reward.terms.exact_match.weight=0", "every reward.terms.<key>.weight is 0"),
    ],
    "GRPO-259": [
        ("experiment=none data=files", "data.path is not set"),
        ("experiment=none data=hub data.path=x data.streaming=true", "data.streaming=true needs trainer.max_steps"),
    ],
    "GRPO-260": [("reward=[]", "reward has no term: choose at least one")],
    "GRPO-261": [
        ("generation.temperature=0", "generation.temperature=0.0 is out of range"),
        ("generation.top_p=0", "generation.top_p=0.0 is out of range: it must be > 0 and <= 1"),
        ("generation.top_p=1.5", "generation.top_p=1.5 is out of range"),
        ("generation.min_p=-0.1", "generation.min_p=-0.1 is out of range: it must be >= 0 and <= 1"),
        ("generation.min_p=1.1", "generation.min_p=1.1 is out of range"),
        ("generation.top_k=-1", "generation.top_k=-1 is out of range: it must be >= 0"),
        ("loss.epsilon=-0.2", "loss.epsilon=-0.2 is out of range: it must be >= 0"),
        ("loss.epsilon_high=-0.2", "loss.epsilon_high=-0.2 is out of range: it must be >= 0"),
        ("loss.epsilon=nan", "loss.epsilon=nan"),
        ("loss.top_entropy_quantile=1.5", "loss.top_entropy_quantile=1.5 is out of range: it must be >= 0 and <= 1"),
        ("loss.top_entropy_quantile=-0.1", "loss.top_entropy_quantile=-0.1 is out of range"),
        ("loss.off_policy_mask_threshold=0", "loss.off_policy_mask_threshold=0.0 is out of range: it must be > 0"),
        ("correction=token_mask correction.clip_min=3", "correction.clip_min=3 must be below correction.clip_max=3"),
        ("correction=token_truncate correction.clip_min=4 correction.clip_max=2", "correction.clip_min=4 must be below correction.clip_max=2"),
        ("correction=sequence_truncate correction.clip_max=null", "correction=sequence_truncate has no bound to clamp to"),
        ("correction.clip_max=0", "correction.clip_max=0.0 is out of range: it must be > 0"),
        ("correction.clip_min=-1", "correction.clip_min=-1.0 is out of range: it must be >= 0"),
    ],
    "GRPO-262": [
        ("algorithm.scale_rewards=std", "algorithm.scale_rewards=std is out of range: it must be one of group, batch, none"),
        ("loss.importance_sampling_level=word", "loss.importance_sampling_level=word is out of range: it must be one of token, sequence, sequence_token"),
        ("algorithm.multi_objective_aggregation=sum", "it must be one of sum_then_normalize, normalize_then_sum"),
        ("algorithm.kl_estimator=k4", "algorithm.kl_estimator=k4 is out of range: it must be one of k1, k2, k3, abs"),
        ("algorithm.kl_in=both", "algorithm.kl_in=both is out of range: it must be one of loss, reward"),
        ("correction=truncate", "correction=truncate: no such option"),
        ("correction.name=truncate", "correction.name=truncate is out of range: it must be one of auto, none, token_truncate"),
        ("rollout=asynchronous", "rollout=asynchronous: no such option"),
        ("generation=nativ", "generation=nativ: no such option; did you mean native?"),
    ],
    "GRPO-263": [
        ("loss=luspo loss.importance_sampling_level=token", "loss.importance_sampling_level=token contradicts loss=luspo"),
        ("loss=vespo correction=sequence_mask", "correction=sequence_mask does not go with loss=vespo"),
        ("loss=vespo correction=sequence_truncate", "correction=sequence_truncate does not go with loss=vespo"),
        ("loss=vespo loss.importance_sampling_level=token", "loss.importance_sampling_level: only loss=bnpo or cispo"),
    ],
    "GRPO-265": [
        ("correction=token_mask generation.repetition_penalty=1.2", "generation.repetition_penalty=1.2 changes the sampler's log-probs"),
        ("correction=token_mask generation.generation_kwargs={repetition_penalty:1.2}", "generation.repetition_penalty=1.2 changes the sampler's log-probs"),
    ],
    "GRPO-270": [
        ("algorithm.sync_ref_model=true", "algorithm.sync_ref_model=true needs algorithm.beta > 0"),
        ("algorithm.sync_ref_model=true algorithm.beta=0.1 peft=lora", "algorithm.sync_ref_model=true does not go with peft=lora"),
        ("algorithm.ref_model_mixup_alpha=1.5", "algorithm.ref_model_mixup_alpha=1.5 is out of range: it must be > 0 and <= 1"),
        ("algorithm.ref_model_sync_steps=0", "algorithm.ref_model_sync_steps=0 is out of range: it must be >= 1"),
    ],
    "GRPO-047": [("loss.router_aux_loss_coef=-1", "loss.router_aux_loss_coef=-1.0 is out of range: it must be >= 0")],
    "GRPO-024": [("algorithm.beta=-0.1", "algorithm.beta=-0.1 is out of range: it must be >= 0"), ("algorithm.beta=inf", "algorithm.beta=inf")],
    "GRPO-006": [("algorithm.num_iterations=0", "algorithm.num_iterations=0 is out of range: it must be >= 1")],
    "GRPO-039": [("loss.delta=1.1", "loss.delta=1.1 must exceed 1 + loss.epsilon = 1.2")],
    "GRPO-041": [("loss=sapo loss.sapo_temperature_pos=0", "loss.sapo_temperature_pos=0.0 is out of range: it must be > 0")],
    "GRPO-045": [("loss=vespo loss.vespo_lambda_neg=0", "loss.vespo_lambda_neg=0.0 is out of range: it must be >= 0.0001")],
    "GRPO-071": [("loss.entropy_coef_min=2", "loss.entropy_coef_min=2 is above loss.entropy_coef_max=1")],
    "GRPO-073": [("loss.entropy_coef_delta=-1", "loss.entropy_coef_delta=-1.0 is out of range: it must be >= 0")],
    "RLOO-084": [
        ("algorithm=rloo reward=[]", "reward has no term: choose at least one"),
        ("algorithm=rloo algorithm.reward_clip_range=[1,-1]", "algorithm.reward_clip_range=[1.0, -1.0] must be [lowest, highest]"),
        ("algorithm=rloo algorithm.reward_clip_range=[1]", "algorithm.reward_clip_range=[1.0] must be [lowest, highest]"),
        ("algorithm=rloo algorithm.num_generations=1", "algorithm.num_generations=1 is out of range: it must be >= 2"),
        ("algorithm=rloo algorithm.scale_rewards=group", "algorithm.scale_rewards: "),
        ("algorithm=rloo algorithm.multi_objective_aggregation=sum_then_normalize", "algorithm.multi_objective_aggregation: "),
        ("algorithm=rloo loss.importance_sampling_level=token", "loss.importance_sampling_level: "),
        ("algorithm=rloo algorithm.token_level_kl=true", "algorithm.token_level_kl: unknown key"),
    ],
    "": [
        ("algorithm.kl_target=0.1", "algorithm.kl_target needs algorithm.beta > 0"),
        ("algorithm.beta=0.1 algorithm.kl_rate=0", "algorithm.kl_rate=0.0 is out of range"),
        ("algorithm.advantage_clip=0", "algorithm.advantage_clip=0.0 is out of range: it must be > 0"),
        ("algorithm.multi_objective_aggregation=normalize_then_sum algorithm.reward_clip_range=[0,1]", "algorithm.reward_clip_range acts on the total reward"),
        ("algorithm=grpo_passk algorithm.k=9", "algorithm.k=9 is larger than algorithm.num_generations=8"),
        ("algorithm=grpo_passk algorithm.k=0", "algorithm.k=0 is out of range: it must be >= 1"),
        ("algorithm=maxrl algorithm.kl_in=reward", "algorithm.kl_in=reward is out of range: it must be one of loss"),
        ("algorithm=reinforce algorithm.baseline=group", "algorithm.baseline=group is out of range: it must be one of batch, none"),
        ("algorithm=reinforce rollout.refill=true", "rollout.refill=true would drop groups that algorithm=reinforce learns from"),
        ("rollout.max_refills=0", "rollout.max_refills=0 is out of range: it must be >= 1"),
        ("loss=gmpo loss.log_epsilon=-1", "loss.log_epsilon=-1.0 is out of range: it must be >= 0"),
        ("loss=dppo loss.delta_low=2", "loss.delta_low=2.0 is out of range: it must be > 0 and <= 1"),
        ("loss=dppo correction=token_mask", "correction=token_mask does not go with loss=dppo"),
        ("loss=clip_cov loss.cov_low=6", "loss.cov_low=6 must be below loss.cov_high=5"),
        ("loss=kl_cov loss.cov_share=0", "loss.cov_share=0.0 is out of range: it must be > 0 and <= 1"),
        ("correction=token_mask correction.normalize=true", "correction.normalize=true is for the sequence modes"),
        ("preset=dapoo", "preset=dapoo: no such option; did you mean dapo or sapo"),
        ("optimizer.learning_rate=nan", "optimizer.learning_rate=nan"),
    ],
}
CASES = [pytest.param(line, message, id=line) for items in BAD.values() for line, message in items]
MESSAGES = {line: message for items in BAD.values() for line, message in items}
PROCESSES = [
    "loss=ppo",
    "reward.terms.exact_match.weight=[1,2]",
    "loss.epsilon=-0.2",
    "loss.top_entropy_quantile=1.5",
    "correction=token_truncate correction.clip_min=4 correction.clip_max=2",
    "loss=luspo loss.importance_sampling_level=token",
    "loss=vespo correction=sequence_mask",
    "algorithm=rloo algorithm.reward_clip_range=[1]",
]
GOOD = ["algorithm.scale_rewards=true", "algorithm.scale_rewards=false", "algorithm.scale_rewards=batch", "loss=luspo", "loss=vespo correction=token_mask"]


def all_problems(quick_run: Callable[..., RunConfig], line: str) -> list[str]:
    """What is wrong with a command line, as the program finds it: the line itself, then the config it makes."""
    words = line.split(" ")
    try:
        return command_line_problems(words) or problems(quick_run(*words))
    except UserError as error:
        return str(error).splitlines()


@pytest.mark.rows("GRPO-006", "GRPO-024", "GRPO-027", "GRPO-028", "GRPO-039", "GRPO-041", "GRPO-045", "GRPO-047", "GRPO-071", "GRPO-073")
@pytest.mark.rows("GRPO-255...257", "GRPO-259...263", "GRPO-265", "GRPO-270", "RLOO-084", "RLOO-014", "RLOO-018", "RLOO-019", "RLOO-023")
@pytest.mark.parametrize(("line", "message"), CASES)
def test_bad_values(quick_run: Callable[..., RunConfig], line: str, message: str) -> None:
    (found,) = all_problems(quick_run, line)
    assert message in found, found


@pytest.mark.rows("GRPO-262", "GRPO-014")
@pytest.mark.parametrize("line", GOOD)
def test_good_values(quick_run: Callable[..., RunConfig], line: str) -> None:
    assert all_problems(quick_run, line) == []


def test_each_kind_ends_a_process_with_one_line_and_without_torch(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(TESTS / "forked_train.py")],
        input=json.dumps([line.split(" ") for line in PROCESSES]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "RLEXP_OUTPUTS": str(tmp_path / "outputs")},
        timeout=300,
        check=True,
    )
    for line, found in zip(PROCESSES, json.loads(done.stdout), strict=True):
        assert found["code"] == 1 and found["out"] == "" and not found["torch"], (line, found)
        assert found["err"].startswith("error: ") and found["err"].count("\n") == 1 and MESSAGES[line] in found["err"], (line, found["err"])
    assert not (tmp_path / "outputs").exists(), "nothing may be written"
