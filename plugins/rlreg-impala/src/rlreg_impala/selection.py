"""The best model so far, and how long ago that was."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from rlreg.atomic_file import replacing
from rlreg.errors import ConfigError

from .limits import unexpected
from .weights import check_weights


class BestModelSelection:
    """Keeps a copy of the model whose evaluation was best.

    Of equal results the later model is kept, but only a better one counts as an improvement. NaN is
    worse than everything.

    Args:
        dump_file: Where the best weights are written, as safetensors; ``None`` for nowhere.
        model: The model that is evaluated; the trainer sets its own if none is given.

    Attributes:
        best_reward: Best result so far; -inf before the first.
        last_improvement: Evaluations since then.
    """

    def __init__(
        self, dump_file: str | os.PathLike[str] | None = None, model: nn.Module | None = None
    ) -> None:
        if not isinstance(dump_file, str | os.PathLike | None):
            raise unexpected("dump_file", "a path or None", dump_file)
        if not isinstance(model, nn.Module | None):
            raise unexpected("model", "a torch module or None", model)
        self.dump_file = None if dump_file is None else _writable(Path(dump_file))
        self.model = model
        self.best_reward = -math.inf
        self.last_improvement = 0
        self.best_weights: dict[str, Tensor] | None = None

    def update(self, reward: float) -> bool:
        """Takes the result of an evaluation of the model as it is now.

        Returns:
            Whether it is better than all before.

        Raises:
            ConfigError: If the result is no number.
        """
        given: object = reward
        if isinstance(given, bool) or not isinstance(given, numbers.Real):
            raise unexpected("reward", "a number", given)
        is_better = reward > self.best_reward or (
            self.best_weights is None and not math.isnan(reward)
        )
        if is_better or reward == self.best_reward:
            self.best_reward = reward
            self._keep()
        self.last_improvement = 0 if is_better else self.last_improvement + 1
        return is_better

    def reset_to_best(self) -> None:
        """Gives the model its best weights back.

        Raises:
            ConfigError: If no evaluation has been taken yet.
        """
        if self.best_weights is None or self.model is None:
            raise ConfigError("there is no best model: no evaluation has been taken yet")
        self.model.load_state_dict(self.best_weights)

    def _keep(self) -> None:
        if self.model is None:
            return
        # state_dict() gives the tensors in use: without copies, the best would train on.
        held = self.model.state_dict().items()
        self.best_weights = {name: tensor.detach().cpu().clone() for name, tensor in held}
        if self.dump_file is not None:
            with replacing(self.dump_file) as file:
                file.write(safetensors.torch.save(self.best_weights))

    def state_dict(self) -> dict[str, Any]:
        """Returns the best weights and the counters."""
        return {
            "best_reward": self.best_reward,
            "last_improvement": self.last_improvement,
            "best_weights": self.best_weights,
        }

    def load_state_dict(
        self, state_dict: Mapping[str, Any], *, like: nn.Module | None = None
    ) -> None:
        """Restores what :meth:`state_dict` gave.

        Args:
            state_dict: The best weights and the counters.
            like: The model that the weights have to fit, where there is one.
        """
        weights = state_dict["best_weights"]
        if like is not None and weights is not None:
            check_weights(like, weights)
        self.best_reward = float(state_dict["best_reward"])
        self.last_improvement = int(state_dict["last_improvement"])
        self.best_weights = (
            None if weights is None else {name: part.clone() for name, part in weights.items()}
        )


def _writable(path: Path) -> Path:
    """Says before training, and not after the first evaluation, what no file can be written to."""
    if path.is_dir():
        raise ConfigError(f"dump_file: {path} is a folder; expected the name of a file")
    if not path.parent.is_dir():
        raise ConfigError(f"dump_file: there is no folder {path.parent} to write {path.name} to")
    return path
