"""Behaviour cloning with one layer: a plugin for the tests of the run half."""

from __future__ import annotations

import os
import signal
import time
from typing import ClassVar, Literal

from pydantic import Field

from rlreg import (
    EncoderFactory,
    LearnableConfig,
    OptimizerFactory,
    hookimpl,
    make_encoder_field,
    make_optimizer_field,
)


class TinyBCConfig(LearnableConfig):
    """Behaviour cloning with one layer and dropout."""

    regime: ClassVar[str] = "offline"
    type: Literal["tiny_bc"] = "tiny_bc"
    batch_size: int = Field(32, ge=1, le=4096, description="Size of a minibatch. Default: ours.")
    learning_rate: float = Field(1e-3, gt=0, le=1, description="Step size. Default: ours.")
    encoder_factory: EncoderFactory = make_encoder_field(
        {"type": "vector", "hidden_units": [8], "dropout_rate": 0.1}
    )
    optim_factory: OptimizerFactory = make_optimizer_field(
        {"type": "adam", "lr_scheduler_factory": {"type": "cosine_annealing"}}
    )

    def create(self, device="auto"):
        return _learnable_class()(self, device)


def _learnable_class():
    import torch
    from torch import nn

    from rlreg import OfflineLearnable

    class TinyBC(OfflineLearnable):
        def build_networks(self, spaces):
            encoder = self.config.encoder_factory.create(spaces.observation_shape)
            head = nn.Linear(encoder.output_size, spaces.action_size)
            self.policy = nn.Sequential(encoder, head)
            self.optimizer = self.config.optim_factory.create(
                self.policy.named_modules(), self.config.learning_rate
            )
            self.running_loss = 0.0

        def act(self, observations, deterministic):
            means = torch.tanh(self.policy(observations))
            if deterministic:
                return means
            return (means + 0.1 * torch.randn_like(means)).clamp(-1, 1)

        def update(self, batch):
            loss = (torch.tanh(self.policy(batch.observations)) - batch.actions).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.running_loss = 0.9 * self.running_loss + 0.1 * float(loss.detach())
            if SLEEP:
                time.sleep(SLEEP)
            return {"bc_loss": loss.detach()}

        def extra_state(self):
            return {"running_loss": self.running_loss}

        def load_extra_state(self, state):
            self.running_loss = state["running_loss"]

    return TinyBC


SLEEP = float(os.environ.get("TINY_BC_SLEEP", "0"))
"""Seconds each update takes longer, so that a test can interrupt it."""


def _die_at_fsync(count):
    """Ends the process without warning when the files of a run reach the disk for the n-th time."""
    original, calls = os.fsync, iter(range(1, 10**6))

    def fsync(handle):
        if next(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        original(handle)

    os.fsync = fsync


if "TINY_BC_DIE_AT_FSYNC" in os.environ:
    _die_at_fsync(int(os.environ["TINY_BC_DIE_AT_FSYNC"]))


@hookimpl
def rlreg_learnables():
    return [TinyBCConfig]
