"""The components rlexp ships: config dataclass and dotted target of each name. Importing this registers them for Hydra."""

from __future__ import annotations

from rlexp import registry
from rlexp.config import algorithm, algorithms, cluster, correction, data, generation, losses, model, reward, run, sdpo, strategy, training, vllm, vllm_server


def register_all() -> None:
    """Register every shipped component and the root schema; idempotent."""
    registry.store("base_run", run.RunConfig)
    for name in ("default", "none"):
        registry.store(f"_schema_evaluation_{name}", training.EvaluationConfig)
        registry.store(f"_schema_checkpoint_{name}", training.CheckpointConfig)
    for name in ("auto", "none", *correction.MODES):
        registry.store(f"_schema_correction_{name}", correction.CorrectionConfig)

    registry.MODELS.register("tiny", model.TinyModelConfig, "rlexp.models.tiny:load")
    registry.MODELS.register("tiny_reprompt", model.TinyRepromptModelConfig, "rlexp.models.tiny_reprompt:load")
    registry.MODELS.register("hub", model.HubModelConfig, "rlexp.models.hub:load")
    registry.MODELS.register("smollm2_135m", model.SmolLM2ModelConfig, "rlexp.models.smollm2:load")
    registry.PEFTS.register("none", model.PeftConfig, "rlexp.models.adapters:no_adapter")
    registry.PEFTS.register("lora", model.LoraConfig, "rlexp.models.adapters:lora")

    registry.DATA.register("addition", data.AdditionDataConfig, "rlexp.data.addition:load")
    registry.DATA.register("reasoning_gym", data.ReasoningGymDataConfig, "rlexp.data.reasoning_gym:load")
    registry.DATA.register("files", data.FilesDataConfig, "rlexp.data.files:load")
    registry.DATA.register("hub", data.HubDataConfig, "rlexp.data.hub:load")

    registry.REWARDS.register("exact_match", reward.ExactMatchRewardConfig, "rlexp.rewards.exact_match:ExactMatch")
    registry.REWARDS.register("reasoning_gym", reward.ReasoningGymRewardConfig, "rlexp.rewards.reasoning_gym:ReasoningGymScore")
    registry.REWARDS.register("accuracy", reward.AccuracyRewardConfig, "rlexp.rewards.accuracy:Accuracy")
    registry.REWARDS.register("think_format", reward.ThinkFormatRewardConfig, "rlexp.rewards.think_format:ThinkFormat")
    registry.REWARDS.register("overlong", reward.OverlongRewardConfig, "rlexp.rewards.overlong:Overlong")
    registry.REWARDS.register("model", reward.ModelRewardConfig, "rlexp.rewards.model:ModelScore")
    registry.REWARDS.register("custom", reward.CustomRewardConfig, "rlexp.rewards.custom:custom")

    registry.GENERATORS.register("native", generation.NativeGenerationConfig, "rlexp.generation.native:NativeGenerator")
    registry.GENERATORS.register("transformers", generation.TransformersGenerationConfig, "rlexp.generation.transformers_generate:TransformersGenerator")
    registry.GENERATORS.register("vllm", vllm.VLLMGenerationConfig, "rlexp.generation.vllm.generator:VLLMGenerator")
    registry.GENERATORS.register("vllm_server", vllm_server.VLLMServerGenerationConfig, "rlexp.generation.vllm_server.generator:VLLMServerGenerator")
    registry.GENERATORS.register(
        "continuous_batching", generation.ContinuousBatchingGenerationConfig, "rlexp.generation.continuous_batching:ContinuousBatchingGenerator"
    )
    registry.ROLLOUTS.register("sync", generation.SyncRolloutConfig, "rlexp.rollout.sync:SyncSource")

    _register_objectives()

    registry.OPTIMIZERS.register("adamw", training.AdamWConfig, "rlexp.training.optimizer:adamw")
    registry.OPTIMIZERS.register("sgd", training.SGDConfig, "rlexp.training.optimizer:sgd")
    registry.TRACKERS.register("wandb", training.WandbTrackerConfig, "rlexp.tracking.wandb:WandbTracker")
    registry.TRACKERS.register("tensorboard", training.TensorboardTrackerConfig, "rlexp.tracking.tensorboard:TensorboardTracker")
    registry.STRATEGIES.register("single", strategy.StrategyConfig, "rlexp.distributed.strategy.single:SingleStrategy")
    registry.STRATEGIES.register("ddp", strategy.DDPStrategyConfig, "rlexp.distributed.strategy.ddp:DDPStrategy")
    registry.STRATEGIES.register("fsdp2", strategy.FSDP2StrategyConfig, "rlexp.distributed.strategy.fsdp2:FSDP2Strategy")
    zero3 = "rlexp.distributed.strategy.deepspeed_zero3:DeepSpeedZero3Strategy"
    registry.STRATEGIES.register("deepspeed_zero3", strategy.DeepSpeedZero3StrategyConfig, zero3)
    registry.CLUSTERS.register("local", cluster.ClusterConfig, "rlexp.launch.hosts:on_this_machine")
    registry.CLUSTERS.register("slurm", cluster.SlurmClusterConfig, "rlexp.launch.hosts:in_a_slurm_job")


def _register_objectives() -> None:
    """Algorithms and losses."""
    registry.ALGORITHMS.register("grpo", algorithm.GRPOConfig, "rlexp.algorithms.grpo:GRPO")
    registry.ALGORITHMS.register("sdpo", sdpo.SDPOConfig, "rlexp.algorithms.sdpo:SDPO")
    registry.ALGORITHMS.register("rloo", algorithms.RLOOConfig, "rlexp.algorithms.rloo:RLOO")
    registry.ALGORITHMS.register("reinforce", algorithms.ReinforceConfig, "rlexp.algorithms.reinforce:Reinforce")
    registry.ALGORITHMS.register("reinforce_pp", algorithms.ReinforcePPConfig, "rlexp.algorithms.reinforce_pp:ReinforcePP")
    registry.ALGORITHMS.register("remax", algorithms.ReMaxConfig, "rlexp.algorithms.remax:ReMax")
    registry.ALGORITHMS.register("opo", algorithms.OPOConfig, "rlexp.algorithms.opo:OPO")
    registry.ALGORITHMS.register("maxrl", algorithms.MaxRLConfig, "rlexp.algorithms.maxrl:MaxRL")
    registry.ALGORITHMS.register("grpo_passk", algorithms.GRPOPassKConfig, "rlexp.algorithms.grpo_passk:GRPOPassK")
    for name, config in (
        ("grpo", algorithm.GRPOLossConfig),
        ("bnpo", algorithm.BNPOLossConfig),
        ("dr_grpo", algorithm.DrGRPOLossConfig),
        ("dapo", algorithm.DAPOLossConfig),
        ("cispo", losses.CISPOLossConfig),
        ("sapo", losses.SAPOLossConfig),
        ("luspo", losses.LUSPOLossConfig),
        ("vespo", losses.VESPOLossConfig),
        ("gmpo", losses.GMPOLossConfig),
        ("dppo", losses.DPPOLossConfig),
        ("clip_cov", losses.ClipCovLossConfig),
        ("kl_cov", losses.KLCovLossConfig),
        ("rloo", algorithms.RLOOLossConfig),
    ):
        registry.LOSSES.register(name, config, f"rlexp.losses.{name}:{name}")
