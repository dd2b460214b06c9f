"""IQL as a learnable: what ``rlreg.create("iql")`` returns."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from rlreg.errors import ConfigError, NonFiniteError
from rlreg.runtime.batch import Batch
from rlreg.runtime.learnable import Spaces
from rlreg.runtime.offline import OfflineLearnable, Source
from rlreg.runtime.optimizers import set_learning_rate
from rlreg.runtime.stacking import NotStackedError
from rlreg_iql.compiled import PAYS_FROM, CompiledUpdates, reason_against
from rlreg_iql.compiled_step import NotCompiledError
from rlreg_iql.graphed import FusedStep, GraphedUpdates
from rlreg_iql.learner import RULES, IQLLearner, Networks
from rlreg_iql.networks import (
    ActionFeatures,
    CriticList,
    Policy,
    StackedCritics,
    ValueFunction,
    make_critics,
    make_policy,
    make_value_function,
)
from rlreg_iql.stacked import Parts, StackedIQL
from rlreg_iql.working_copy import WorkingCopy

if TYPE_CHECKING:
    from rlreg.runtime.data import TransitionDataset
    from rlreg_iql.config import IQLConfig


class IQL(OfflineLearnable):
    """Implicit Q-Learning.

    Attributes:
        policy: Acts.
        critics: ``[E, B]`` values of observations and actions.
        target_critics: Slow copy of the critics; follows them, is never trained.
        value: Values of observations.
        actor_optim: Of the policy.
        critic_optim: Of the critics; of the value function too with the rule ``d3rlpy``.
        value_optim: Of the value function where the rule has one.
    """

    config: IQLConfig
    policy: Policy
    critics: StackedCritics | CriticList
    target_critics: StackedCritics | CriticList
    value: ValueFunction
    actor_optim: torch.optim.Optimizer
    critic_optim: torch.optim.Optimizer
    value_optim: torch.optim.Optimizer | None = None
    _compiled: CompiledUpdates | GraphedUpdates | None = None

    def build_networks(self, spaces: Spaces) -> None:
        """Makes networks and optimizers; see :class:`rlreg.Learnable`."""
        config, rule = self.config, RULES[self.config.update_rule]
        self.policy = make_policy(
            config.actor_encoder_factory,
            spaces,
            actor_kind=config.actor_kind,
            log_std_form=rule.log_std_form,
            initialization=config.initialization,
        )
        self.critics = make_critics(
            config.critic_encoder_factory,
            spaces,
            num_critics=config.n_critics,
            initialization=config.initialization,
        )
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.value = make_value_function(
            config.value_encoder_factory, spaces, initialization=config.initialization
        )
        self._features = ActionFeatures(spaces)
        self._make_optimizers()
        self._learner = self._make_learner()

    def _make_optimizers(self) -> None:
        config = self.config
        self.actor_optim = config.actor_optim_factory.create(
            list(_named("policy", self.policy)), config.actor_learning_rate
        )
        critics, value = list(_named("critics", self.critics)), list(_named("value", self.value))
        if RULES[config.update_rule].has_value_optimizer:
            factory = config.value_optim_factory or config.critic_optim_factory
            rate = config.value_learning_rate or config.critic_learning_rate
            self.value_optim = factory.create(value, rate)
            self.critic_optim = config.critic_optim_factory.create(
                critics, config.critic_learning_rate
            )
            return
        self.value_optim = None
        self.critic_optim = config.critic_optim_factory.create(
            critics + value, config.critic_learning_rate
        )
        if config.value_learning_rate is not None:
            set_learning_rate(
                self.critic_optim, self.value.parameters(), config.value_learning_rate
            )

    def _make_learner(self) -> IQLLearner:
        return IQLLearner(self.config, *self._parts())

    def _parts(self) -> tuple[Networks, dict[str, torch.optim.Optimizer], ActionFeatures]:
        optimizers = {"actor": self.actor_optim, "critic": self.critic_optim}
        if self.value_optim is not None:
            optimizers["value"] = self.value_optim
        networks = Networks(self.policy, self.critics, self.target_critics, self.value)
        return networks, optimizers, self._features

    # --- compiled -------------------------------------------------------------------------------

    @property
    def _uses_graph(self) -> bool:
        return self.device.type == "cuda"

    def settle_compile(self, dataset: Source, n_steps: int) -> str:
        """Decides whether updates are compiled; see :class:`rlreg.OfflineLearnable`.

        Raises:
            ConfigError: If that was asked for on a GPU and cannot be done.
        """
        self._compiled, self.is_compiled = None, False
        if self.compile == "off":
            return ""
        reason = reason_against(*self._parts(), self.device)
        if reason is None and self._uses_graph and not hasattr(dataset, "sample_indices"):
            reason = "the updates of a graph take a data set, and no buffer that grows"
        if reason is None and self.compile == "auto" and n_steps < PAYS_FROM:
            reason = f"compiling pays from {PAYS_FROM:,} updates on"
        if reason is not None:
            return reason
        try:
            self._compiled = self._make_compiled(dataset)
        except NotCompiledError as error:
            if self._uses_graph and self.compile == "on":
                raise ConfigError(
                    f"compile = 'on': {error}; with 'off' or 'auto' the run goes on without it"
                ) from error
            return str(error)
        self.is_compiled = True
        return f"{n_steps:,} updates pay for it" if self.compile == "auto" else "the run says so"

    def _make_compiled(self, dataset: Source) -> CompiledUpdates | GraphedUpdates:
        generator = torch.Generator()
        if self._uses_graph:
            copy = WorkingCopy(self.config, *self._parts(), FusedStep)
            graphed = GraphedUpdates(copy, self.device)
            graphed.warm_up(lambda count: self._draw_many(dataset, generator, count))
            return graphed
        compiled = CompiledUpdates(WorkingCopy(self.config, *self._parts()))
        compiled.warm_up(self._draw(dataset, generator))
        return compiled

    def run_updates(self, dataset: Source, n_steps: int) -> dict[str, Tensor]:
        """Runs a chunk, compiled where that is settled; see :class:`rlreg.OfflineLearnable`."""
        if self._compiled is None:
            return super().run_updates(dataset, n_steps)
        before = self.generator.get_state()
        totals = None
        try:
            totals = self._run_compiled(dataset, n_steps)
        finally:
            if totals is None:
                self.generator.set_state(before)
        if totals is None:  # something was not finite: the plain path finds out what and where
            return super().run_updates(dataset, n_steps)
        self.grad_step += n_steps
        return totals

    def _run_compiled(self, dataset: Source, n_steps: int) -> dict[str, Tensor] | None:
        stream = self.generator
        if isinstance(self._compiled, GraphedUpdates):
            return self._compiled.run(
                lambda count: self._draw_many(dataset, stream, count), n_steps
            )
        assert self._compiled is not None
        return self._compiled.run(lambda: self._draw(dataset, stream), n_steps)

    def _draw_many(self, dataset: Source, generator: torch.Generator, count: int) -> Batch:
        """Draws what :meth:`_draw` would in so many calls; each part is ``[count, B, ...]``."""
        data, size = cast("TransitionDataset", dataset), self.config.batch_size
        indices = torch.cat([data.sample_indices(size, generator) for _ in range(count)])
        rows = self.scale_batch(Batch(**data.gather(indices)))
        return Batch(*(part.reshape(count, size, *part.shape[1:]) for part in rows.values()))

    def _draw(self, dataset: Source, generator: torch.Generator) -> Batch:
        return self.scale_batch(Batch(**dataset.sample(self.config.batch_size, generator)))

    def stacked_with(
        self, peers: Sequence[OfflineLearnable], dataset: TransitionDataset
    ) -> StackedIQL:
        """Trains this one and its peers as one computation; see :class:`rlreg.OfflineLearnable`."""
        members = [self, *(peer for peer in peers if isinstance(peer, IQL))]
        if any(member.config != self.config for member in members):
            raise NotStackedError("the members' configs differ")
        return StackedIQL(members, [Parts(*member._parts()) for member in members], dataset)

    def update(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Does one update; see :class:`rlreg.OfflineLearnable`.

        Returns:
            ``critic_loss`` (the sum of the next two), ``q_loss``, ``v_loss``, ``actor_loss`` and
            diagnostics; the README explains each.
        """
        assert isinstance(batch, Batch)  # the base has checked and scaled it
        try:
            return dict(self._learner.update(batch))
        except NonFiniteError as error:
            raise NonFiniteError(
                f"update {self.grad_step + 1}: {error}{_bad_rows(batch)}; the update was undone"
            ) from error

    def act(self, observations: Tensor, deterministic: bool) -> Tensor:
        """Chooses actions; see :class:`rlreg.Learnable`."""
        actions = self.policy.act(observations, deterministic)
        return self._features.actions(actions) if self._features.is_discrete else actions

    def action_distribution(self, observations: Tensor) -> Mapping[str, Tensor]:
        """Returns ``mean`` and ``std``, or logits; see :class:`rlreg.Learnable`."""
        return self.policy.distribution(observations)

    def action_value(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Returns the mean of the critics, ``[B]``, as d3rlpy does."""
        dtype = next(self.critics.parameters()).dtype
        values: Tensor = self.critics(observations, self._features.encode(actions, dtype))
        return values.mean(dim=0)


def _named(prefix: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, part in module.named_modules():
        yield f"{prefix}.{name}".rstrip("."), part


def _bad_rows(batch: Batch) -> str:
    """Names rows of the batch that are at fault, for data that was let in unchecked."""
    for name, value in batch.items():
        if value.is_floating_point():
            is_bad = ~torch.isfinite(value).reshape(len(value), -1).all(dim=1)
            rows = is_bad.nonzero().flatten().tolist()
            if rows:
                return f" (the batch's {name} are not finite in rows {rows[:5]})"
    return ""
