"""Behaviour cloning itself: the half that may import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rlreg import OfflineLearnable
from rlreg.errors import EnvironmentSpecError
from rlreg.runtime.guard import check_step

if TYPE_CHECKING:
    from rlreg.runtime.batch import Batch
    from rlreg.runtime.learnable import Spaces

    from .config import BCConfig


class BC(OfflineLearnable):
    """A policy fitted to the actions of the data set.

    Continuous actions: mean squared error of a tanh output. One discrete action: cross-entropy.
    """

    config: BCConfig

    def build_networks(self, spaces: Spaces) -> None:
        """Makes the policy and its optimizer; the base class finds both."""
        plan = spaces.action_plan
        if plan.is_discrete and len(plan.category_counts) > 1:
            raise EnvironmentSpecError(f"'bc' clones one discrete action, not {plan.space}")
        self.first_category = plan.category_starts[0] if plan.is_discrete else None
        encoder: Any = self.config.encoder_factory.create(spaces.observation_shape)
        self.policy = nn.Sequential(encoder, nn.Linear(encoder.output_size, spaces.action_size))
        self.optimizer = self.config.optim_factory.create(
            self.policy.named_modules(), lr=self.config.learning_rate
        )

    def update(self, batch: Batch) -> dict[str, Any]:  # type: ignore[override]  # always a Batch
        """Does one step towards the actions of ``batch``."""
        outputs = self.policy(batch.observations)  # [B, A], or [B, K] logits
        if self.first_category is None:
            loss = functional.mse_loss(torch.tanh(outputs), batch.actions)
        else:
            loss = functional.cross_entropy(outputs, batch.actions - self.first_category)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch states no types here
        check_step("loss", loss, self.optimizer)  # NaN stops here, before it reaches a weight
        self.optimizer.step()
        return {"loss": loss.detach()}

    def act(self, observations: Tensor, deterministic: bool) -> Tensor:
        """Returns the cloned action; a sample of the categories where they are discrete."""
        outputs: Tensor = self.policy(observations)
        if self.first_category is None:
            return torch.tanh(outputs)
        if deterministic:
            return outputs.argmax(dim=1) + self.first_category
        return torch.softmax(outputs, dim=1).multinomial(1)[:, 0] + self.first_category
