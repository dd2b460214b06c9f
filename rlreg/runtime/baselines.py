"""What a result is compared with: behaviour cloning, of all episodes or of the best ones.

A yardstick inside rlreg, not a learnable that anyone can name: it is not registered, and a plugin
called ``bc`` is another thing. It has the networks, optimizer and minibatches that offline papers
give it, and as many updates as the run it stands beside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from rlreg.config import (
    EncoderFactory,
    LearnableConfig,
    ObservationScaler,
    OptimizerFactory,
    make_encoder_field,
    make_observation_scaler_field,
    make_optimizer_field,
)
from rlreg.open_union import validate
from rlreg.runtime.batch import Batch
from rlreg.runtime.data.dataset import References, TransitionDataset
from rlreg.runtime.environments import EnvLike
from rlreg.runtime.evaluation import Evaluation, evaluate
from rlreg.runtime.guard import check_step
from rlreg.runtime.learnable import Learnable, Spaces
from rlreg.runtime.offline import OfflineLearnable

if TYPE_CHECKING:
    from rlreg.config import DeviceLike
    from rlreg.run_config import RunConfig

CLONED_SHARES = {"bc": 1.0, "bc10": 0.1}
"""Names of the baselines that clone, and the share of episodes they clone, best first."""


class CloningConfig(LearnableConfig):
    """Behaviour cloning: imitates the actions of the data."""

    regime: ClassVar[str] = "offline"

    type: Literal["bc"] = "bc"
    batch_size: int = Field(256, ge=1, le=1_000_000, description="Default: Kostrikov et al., 256.")
    learning_rate: float = Field(3e-4, gt=0, le=10, description="Default: Kostrikov et al., 3e-4.")
    encoder_factory: EncoderFactory = make_encoder_field()
    optim_factory: OptimizerFactory = make_optimizer_field()
    observation_scaler: ObservationScaler | None = make_observation_scaler_field()

    def create(self, device: DeviceLike = "auto") -> Cloning:
        """Makes the learnable."""
        return Cloning(self, device)


class Cloning(OfflineLearnable):
    """A policy fitted to the actions of the data: squared error, or cross-entropy of categories."""

    config: CloningConfig

    def build_networks(self, spaces: Spaces) -> None:
        """Makes the policy and its optimizer."""
        plan = spaces.action_plan
        self.counts, self.starts = list(plan.category_counts), plan.category_starts
        encoder: Any = self.config.encoder_factory.create(spaces.observation_shape)
        head = nn.Linear(encoder.output_size, sum(self.counts) or plan.size)
        self.policy = nn.Sequential(encoder, head)
        self.optimizer = self.config.optim_factory.create(
            self.policy.named_modules(), self.config.learning_rate
        )

    def update(self, batch: Batch) -> dict[str, Any]:  # type: ignore[override]  # always a Batch
        """Does one step towards the actions of a batch."""
        outputs = self.policy(batch.observations)  # [B, A], or [B, sum(K)] logits
        if self.counts:
            columns = batch.actions.reshape(batch.size, len(self.counts))
            loss = torch.stack(
                [
                    functional.cross_entropy(logits, columns[:, index] - self.starts[index])
                    for index, logits in enumerate(torch.split(outputs, self.counts, dim=1))
                ]
            ).sum()
        else:
            loss = functional.mse_loss(torch.tanh(outputs), batch.actions)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch states no types here
        check_step("loss", loss.detach(), self.optimizer)
        self.optimizer.step()
        return {"loss": loss.detach()}

    def act(self, observations: Tensor, deterministic: bool) -> Tensor:
        """Returns the cloned actions; there is nothing to sample."""
        outputs: Tensor = self.policy(observations)
        if not self.counts:
            return torch.tanh(outputs)
        assert self.spaces is not None
        parts = [
            logits.argmax(dim=1) + start
            for logits, start in zip(
                torch.split(outputs, self.counts, dim=1), self.starts, strict=True
            )
        ]
        return torch.stack(parts, dim=1).reshape(-1, *self.spaces.action_plan.shape)


class BestEpisodes:
    """The transitions of the episodes with the highest returns, for sampling.

    Args:
        dataset: All episodes.
        share: Share of the episodes, in (0, 1]; at least one is kept.
    """

    def __init__(self, dataset: TransitionDataset, share: float) -> None:
        self.dataset = dataset
        episodes = dataset.episodes
        count = max(1, int(len(episodes) * share))
        # Stable: of equal returns the earlier episodes.
        self.chosen = np.sort(np.argsort(-episodes.returns, kind="stable")[:count])
        rows = [
            np.arange(start, start + length)
            for start, length in zip(
                episodes.starts[self.chosen], episodes.lengths[self.chosen], strict=True
            )
        ]
        self._indices = torch.from_numpy(np.concatenate(rows))

    def __len__(self) -> int:
        return len(self._indices)

    def sample(self, batch_size: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draws transitions of these episodes uniformly with replacement."""
        drawn = torch.randint(
            len(self), (batch_size,), generator=generator, device=generator.device
        )
        return self.dataset.gather(self._indices[drawn.cpu()])


def evaluate_cloning(
    name: str,
    dataset: TransitionDataset,
    env: EnvLike,
    run: RunConfig,
    *,
    device: torch.device,
    references: References | None,
    tick: Callable[[], None],
) -> Evaluation:
    """Trains a cloning baseline on a data set and evaluates it as the run is evaluated.

    Args:
        name: ``bc`` or ``bc10``.
        dataset: What the run learns from.
        env: Where it is evaluated.
        run: Its number of updates, seed, observation scaler and evaluation settings hold here too.
        device: Where to train.
        references: What makes a return a score.
        tick: Called now and then; what it raises ends everything.
    """
    learnable = clone(
        name,
        dataset,
        run.train.n_steps or 1,
        device=device,
        seed=run.seed,
        observation_scaler=getattr(run.learnable, "observation_scaler", None),
        tick=tick,
    )
    settings = run.evaluation
    return evaluate(
        learnable, env, settings.n_episodes, settings.seed, references=references, tick=tick
    )


def clone(
    name: str,
    dataset: TransitionDataset,
    n_steps: int,
    *,
    device: torch.device,
    seed: int = 0,
    observation_scaler: ObservationScaler | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Learnable:
    """Trains a cloning baseline; see :func:`evaluate_cloning`."""
    config = validate(CloningConfig, {"type": "bc", "observation_scaler": observation_scaler})
    learnable: Cloning = config.create(str(device))
    learnable.prepare(seed=seed, compile="off")
    learnable.build_with_dataset(dataset)
    share = CLONED_SHARES[name]
    source = dataset if share == 1 else cast("TransitionDataset", BestEpisodes(dataset, share))
    learnable.train_epoch(source, n_steps, tick=lambda _: tick())
    return learnable
