"""DeepSpeed's optimizer as torch's: parameter groups, and a state of whole tensors that any strategy can continue with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rlexp.distributed.shards import part_of
from rlexp.distributed.zero import own_flat_part


class ZeroOptimizer(torch.optim.Optimizer):
    """The optimizer inside an engine. It works on flat float32 parts; here its state is that of the parameters, in their order."""

    def __init__(self, engine: Any, parameters: list[nn.Parameter]) -> None:
        self.engine, self.parameters = engine, parameters

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Those of the flat parts: the learning rate is set here."""
        groups: list[dict[str, Any]] = self.engine.optimizer.optimizer.param_groups
        return groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop what was summed since the last step."""
        self.engine.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """As torch's optimizers give it. An exchange: all ranks call it, and rank 0 alone keeps the tensors, on the CPU."""
        from deepspeed.utils import safe_get_full_optimizer_state

        keeps = torch.distributed.get_rank() == 0
        state: dict[int, dict[str, Any]] = {}
        for place, parameter in enumerate(self.parameters):
            flat, found = self._flat_state(parameter)
            for name, value in found.items():
                if isinstance(value, Tensor) and value.shape == flat.shape:
                    whole = safe_get_full_optimizer_state(parameter, name)
                    if keeps:
                        state.setdefault(place, {})[name] = whole.detach().cpu().clone()
                elif keeps:
                    # a count of its own for each parameter: torch's optimizers add to each, and a shared one would be added to many times
                    state.setdefault(place, {})[name] = value.clone() if isinstance(value, Tensor) else value
        groups = [{key: value for key, value in group.items() if key != "params"} for group in self.param_groups]
        return {"state": state, "param_groups": [{**groups[0], "params": list(range(len(self.parameters)))}]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what an optimizer's state_dict gave, in parts or whole."""
        inner = self.engine.optimizer.optimizer
        for place, values in state_dict["state"].items():
            parameter: Any = self.parameters[place]
            flat, found = self._flat_state(parameter)
            _, offset, count = self._position(parameter)
            for name, value in values.items():
                if tuple(getattr(value, "shape", ())) == tuple(parameter.ds_shape):
                    whole = part_of(value, torch.empty(parameter.ds_shape, device="meta"))
                    moments = found.setdefault(name, torch.zeros_like(flat))
                    moments.narrow(0, offset, count).copy_(own_flat_part(parameter, whole))
                else:
                    found[name] = value.clone() if isinstance(value, Tensor) else value
            inner.state[flat] = found

    def _position(self, parameter: Any) -> tuple[int, int, int]:
        """Which flat part a parameter lies in, where it begins and how long it is."""
        stage3 = self.engine.optimizer
        position: tuple[int, int, int] = stage3.grad_position[stage3.get_param_id(parameter)]
        return position

    def _flat_state(self, parameter: nn.Parameter) -> tuple[Tensor, dict[str, Any]]:
        """The flat part a parameter lies in and its state, {} before the first step."""
        stage3 = self.engine.optimizer
        flat = stage3.fp32_partitioned_groups_flat[self._position(parameter)[0]]
        return flat, dict(stage3.optimizer.state.get(flat, {}))
