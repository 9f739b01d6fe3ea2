"""What a weight sync costs beside the step it belongs to, in real runs of a pretrained model with 135 million parameters
and completions of up to 96 tokens.

    python scripts/sync_cost.py                          generation=vllm, then a server that the run starts; a few steps each
    python scripts/sync_cost.py --steps 8 peft=lora      more steps, and overrides of the runs

Prints the median seconds of a sync and of a step, from the second step on (the first sync also sends what never changes and compares log-probs),
and exits with code 1 when a sync takes more than 3 % of a step. Run it on a machine that does nothing else. Needs vLLM.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT = 0.03
RUN = ("experiment=smollm2_arithmetic", "rollout.max_completion_length=96", "evaluation=none", "checkpoint=none", "tracker=none", "run.name=cost")
SAMPLERS = {"vllm": ("generation=vllm",), "vllm_server": ("generation=vllm_server", "generation.launch=true")}


def measured(sampler: str, steps: int, overrides: list[str]) -> list[tuple[float, float]]:
    """(seconds of the sync, seconds of the step) of each step but the first."""
    with tempfile.TemporaryDirectory(prefix="rlexp_cost_") as outputs:
        command = [sys.executable, "-m", "rlexp.train", *RUN, *SAMPLERS[sampler], f"trainer.max_steps={steps}", *overrides]
        subprocess.run(command, env={**os.environ, "RLEXP_OUTPUTS": outputs}, stdout=subprocess.DEVNULL, check=True)
        lines = [json.loads(line) for line in (Path(outputs) / "cost" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [(line["perf/weight_sync_s"], line["step_time"]) for line in lines if line["split"] == "train"][1:]


def main() -> None:
    """Both samplers, or the chosen one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--sampler", choices=sorted(SAMPLERS))
    parser.add_argument("overrides", nargs="*", help="of the runs")
    arguments = parser.parse_args()
    shares = []
    for sampler in [arguments.sampler] if arguments.sampler else SAMPLERS:
        syncs, steps = zip(*measured(sampler, arguments.steps, arguments.overrides), strict=True)
        sync, step = statistics.median(syncs), statistics.median(steps)
        shares.append(sync / step)
        each = ", ".join(f"{seconds:.2f}" for seconds in syncs)
        print(f"{sampler}: a sync takes {sync:.2f} s ({each}) of a step of {step:.1f} s: {sync / step:.1%}", flush=True)
    sys.exit(max(shares) > LIMIT)


if __name__ == "__main__":
    main()
