"""Names of metrics: ours, and Maze's as aliases."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .rollouts import ActorStatus, Fragment

MAZE_NAMES = {
    "policy_loss": "loss/policy",
    "policy_grad_norm": "loss/policy_grad_norm",
    "policy_entropy": "loss/entropy",
    "critic_value": "loss/critic_value",
    "critic_value_loss": "loss/value",
    "critic_grad_norm": "loss/critic_grad_norm",
    "time_dequeuing_actors": "time/dequeuing_actors_s",
    "time_collecting_actors": "time/collecting_actors_s",
    "time_learner_rollout": "time/learner_rollout_s",
    "time_loss_computation": "time/loss_computation_s",
    "time_backprob": "time/backprop_s",
    "estimated_queue_sizes_before": "queue/waiting_before",
    "estimated_queue_sizes_after": "queue/waiting_after",
}
"""Maze's event names and the metrics that they are aliases of (the spelling is Maze's)."""

_TIMES = (
    "dequeuing_actors",
    "collecting_actors",
    "learner_rollout",
    "loss_computation",
    "backprop",
    "publishing",
)


def with_aliases(metrics: dict[str, float]) -> dict[str, float]:
    """Adds Maze's names under ``maze/``, times also as shares of an update in percent."""
    whole = sum(metrics.get(f"time/{name}_s", 0.0) for name in _TIMES)
    aliases = {}
    for theirs, ours in MAZE_NAMES.items():
        if ours not in metrics:
            continue
        aliases[f"maze/{theirs}"] = metrics[ours]
        if ours.startswith("time/") and whole > 0:
            aliases[f"maze/{theirs}_percent"] = 100 * metrics[ours] / whole
    return {**metrics, **aliases}


class EpisodeStats:
    """Returns and lengths of the last episodes that ended in training.

    Args:
        window: How many.
    """

    def __init__(self, window: int = 50) -> None:
        self.returns: deque[float] = deque(maxlen=window)
        self.lengths: deque[int] = deque(maxlen=window)
        self.count = 0

    def add(self, fragments: Iterable[Fragment]) -> None:
        """Takes the episodes that ended in fragments."""
        for fragment in fragments:
            self.returns.extend(fragment.episode_returns.tolist())
            self.lengths.extend(fragment.episode_lengths.tolist())
            self.count += len(fragment.episode_returns)

    def metrics(self) -> dict[str, float]:
        """Returns means over the window; nothing before the first episode has ended."""
        if not self.returns:
            return {"episode/count": 0.0}
        return {
            "episode/return_mean": float(np.mean(self.returns)),
            "episode/return_max": float(np.max(self.returns)),
            "episode/length_mean": float(np.mean(self.lengths)),
            "episode/count": float(self.count),
        }

    def state(self) -> dict[str, Any]:
        """Returns the window for a checkpoint."""
        return {
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "count": self.count,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restores what :meth:`state` gave."""
        self.returns.clear()
        self.lengths.clear()
        self.returns.extend(state["returns"])
        self.lengths.extend(state["lengths"])
        self.count = int(state["count"])


def actor_metrics(actors: Sequence[ActorStatus]) -> dict[str, float]:
    """Returns what the health of the actors says."""
    return {
        "actors/restarts": float(sum(actor.restarts for actor in actors)),
        "actors/idle": float(sum(actor.state == "idle" for actor in actors)),
    }
