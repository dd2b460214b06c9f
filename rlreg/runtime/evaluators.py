"""What a learnable thinks of a data set: figures for ``fit(evaluators={...})`` and for run files.

Names and definitions are d3rlpy's. Each figure is a sum over chunks of the data that stays on the
device until the last chunk, so an evaluator waits for the device once. Values are in the units that
the critics learn, that is of scaled rewards. Nothing here changes how training goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from rlreg.errors import ConfigError, UnknownNameError, did_you_mean
from rlreg.runtime.batch import Batch
from rlreg.runtime.learnable import Learnable
from rlreg.runtime.offline import Evaluator, OfflineLearnable

if TYPE_CHECKING:
    from rlreg.runtime.data import TransitionDataset
    from rlreg.runtime.environments import EnvLike

CHUNK = 4096
"""Transitions at a time; an ensemble of 100 critics needs some 400 MB for that many."""
_BEST_SHARE = 0.1

Indexed: TypeAlias = tuple[Tensor, Batch]


# --- figures of the critics ---------------------------------------------------------------------


class TDErrorEvaluator:
    """Mean squared TD error under the learnt policy: how well the critics fit their own targets.

    ``(r + gamma^interval * Q(s', pi(s')) - Q(s, a))^2``, without the second term at terminations.

    Args:
        gamma: Discount; the config's if ``None``.
    """

    def __init__(self, gamma: float | None = None) -> None:
        self.gamma = gamma

    def __call__(self, learnable: OfflineLearnable, dataset: TransitionDataset) -> float:
        """Returns the mean over all transitions."""
        gamma = _discount(learnable, self.gamma)

        def errors(_: Tensor, batch: Batch) -> Tensor:
            values = learnable.action_value(batch.observations, batch.actions)
            # A terminated episode may lack its last observation, so what is made of it is masked.
            following = _policy_value(learnable, batch.next_observations)
            bootstrap = torch.where(batch.terminations > 0, 0.0, gamma**batch.intervals * following)
            return (batch.rewards + bootstrap - values).square()

        return _mean(learnable, dataset, errors)


class DiscountedSumOfAdvantageEvaluator:
    """Mean over all steps of the discounted sum of the advantages from there to the episode's end.

    The advantage is ``Q(s, a) - Q(s, pi(s))``. The lower, the more the policy differs from the data
    in what the critics prefer. Each row discounts once, as in d3rlpy.

    Args:
        gamma: Discount; the config's if ``None``.
    """

    def __init__(self, gamma: float | None = None) -> None:
        self.gamma = gamma

    def __call__(self, learnable: OfflineLearnable, dataset: TransitionDataset) -> float:
        """Returns the mean over all transitions."""
        gamma = _discount(learnable, self.gamma)
        starts = torch.from_numpy(dataset.episodes.starts).to(learnable.device)

        def parts(indices: Tensor, batch: Batch) -> Tensor:
            values = learnable.action_value(batch.observations, batch.actions)
            advantages = values - _policy_value(learnable, batch.observations)
            # The advantage of step t occurs in the sums of steps 0..t, discounted t..0 times: no
            # sum has to be made backwards.
            episode = torch.searchsorted(starts, indices, right=True) - 1
            steps = (indices - starts[episode] + 1).to(torch.float64)
            weights = steps if gamma == 1 else (1 - gamma**steps) / (1 - gamma)
            return advantages.to(torch.float64) * weights

        return _mean(learnable, dataset, parts)


class AverageValueEstimationEvaluator:
    """Mean of ``Q(s, pi(s))`` over all observations; growing without end, it means divergence."""

    def __call__(self, learnable: OfflineLearnable, dataset: TransitionDataset) -> float:
        """Returns the mean over all transitions."""
        _require_values(learnable)
        return _mean(learnable, dataset, lambda _, b: _policy_value(learnable, b.observations))


class InitialStateValueEstimationEvaluator:
    """Mean of ``Q(s, pi(s))`` over the first observations: the return that the critics promise."""

    def __call__(self, learnable: OfflineLearnable, dataset: TransitionDataset) -> float:
        """Returns the mean over all episodes."""
        _require_values(learnable)
        starts = torch.from_numpy(dataset.episodes.starts)
        total = _zero(learnable)
        with judging(learnable):
            for indices in torch.split(starts, CHUNK):
                batch = _scaled(learnable, dataset.gather(indices))
                total += _policy_value(learnable, batch.observations).to(total.dtype).sum()
        return float(total) / len(starts)


class SoftOPCEvaluator:
    """Soft off-policy classification (Irpan et al. 2019): are good episodes valued higher?

    Mean of ``Q(s, a)`` over the transitions of the episodes that reach ``return_threshold``, minus
    its mean over all transitions.

    Args:
        return_threshold: Least return of a good episode; ``None`` takes the best tenth.
    """

    def __init__(self, return_threshold: float | None = None) -> None:
        self.return_threshold = return_threshold

    def __call__(self, learnable: OfflineLearnable, dataset: TransitionDataset) -> float:
        """Returns the difference.

        Raises:
            ConfigError: If no episode reaches the threshold.
        """
        _require_values(learnable)
        returns, lengths = dataset.episodes.returns, dataset.episodes.lengths
        threshold = self.return_threshold
        if threshold is None:
            threshold = float(np.sort(returns)[-max(1, int(len(returns) * _BEST_SHARE))])
        is_good = returns >= threshold
        if not is_good.any():
            raise ConfigError(
                f"soft_opc: no episode returns {threshold:g}, the best returns {returns.max():g}"
            )
        good_rows = torch.from_numpy(np.repeat(is_good, lengths)).to(learnable.device)
        good, everything = _zero(learnable), _zero(learnable)
        with judging(learnable):
            for indices, batch in _batches(learnable, dataset):
                values = learnable.action_value(batch.observations, batch.actions).to(good.dtype)
                everything += values.sum()
                good += torch.where(good_rows[indices], values, 0.0).sum()
        return float(good / int(lengths[is_good].sum()) - everything / len(dataset))


# --- figures of the policy ----------------------------------------------------------------------


class ContinuousActionDiffEvaluator:
    """Mean squared distance between the actions of the data and the policy's, in their units."""

    def __call__(self, learnable: OfflineLearnable, dataset: TransitionDataset) -> float:
        """Returns the mean over all transitions of the sum over action dimensions."""
        scaler = learnable.action_scaler

        def distances(_: Tensor, batch: Batch) -> Tensor:
            own, given = learnable.act(batch.observations, True), batch.actions
            if scaler is not None:
                own, given = scaler.inverse(own), scaler.inverse(given)
            return (own - given).square().flatten(start_dim=1).sum(dim=1)

        return _mean(learnable, dataset, distances)


class DiscreteActionMatchEvaluator:
    """Share of the transitions in which the policy chooses the very categories of the data."""

    def __call__(self, learnable: OfflineLearnable, dataset: TransitionDataset) -> float:
        """Returns the share."""

        def matches(_: Tensor, batch: Batch) -> Tensor:
            own = learnable.act(batch.observations, True).reshape(batch.size, -1)
            return (own == batch.actions.reshape(batch.size, -1)).all(dim=1).to(torch.float32)

        return _mean(learnable, dataset, matches)


class ActionDifferenceEvaluator:
    """How far the policy is from the actions of the data: a squared distance, or a share.

    Continuous actions: :class:`ContinuousActionDiffEvaluator`. Categories: the share of transitions
    in which the policy chooses others, 1 minus :class:`DiscreteActionMatchEvaluator`.
    """

    def __call__(self, learnable: OfflineLearnable, dataset: TransitionDataset) -> float:
        """Returns the difference; 0 is the same policy."""
        if dataset.action_plan.is_discrete:
            return 1.0 - DiscreteActionMatchEvaluator()(learnable, dataset)
        return ContinuousActionDiffEvaluator()(learnable, dataset)


class EnvironmentEvaluator:
    """Mean return of seeded episodes in an environment.

    Args:
        env: Anything that :meth:`Learnable.evaluate` takes.
        n_episodes: How many, >= 1.
        seed: Seed of the first.
    """

    def __init__(self, env: EnvLike, n_episodes: int = 10, seed: int = 10_000) -> None:
        self.env, self.n_episodes, self.seed = env, n_episodes, seed

    def __call__(self, learnable: Learnable, dataset: TransitionDataset) -> float:
        """Returns the mean return of the best actions."""
        return learnable.evaluate(self.env, self.n_episodes, self.seed).mean_return


# --- by name ------------------------------------------------------------------------------------

EVALUATORS: Mapping[str, Callable[[], Evaluator]] = {
    "td_error": TDErrorEvaluator,
    "advantage_sum": DiscountedSumOfAdvantageEvaluator,
    "average_value": AverageValueEstimationEvaluator,
    "initial_value": InitialStateValueEstimationEvaluator,
    "soft_opc": SoftOPCEvaluator,
    "action_difference": ActionDifferenceEvaluator,
}
"""What a run file may name; each as it is without arguments."""
_NEED_VALUES = frozenset(EVALUATORS) - {"action_difference"}


def make_evaluators(names: Iterable[str], learnable: Learnable) -> dict[str, Evaluator]:
    """Makes evaluators by name, before anything is trained.

    Raises:
        UnknownNameError: If there is no such evaluator.
        ConfigError: If the learnable lacks what one of them needs.
    """
    made: dict[str, Evaluator] = {}
    for name in names:
        if name not in EVALUATORS:
            known = ", ".join(EVALUATORS)
            raise UnknownNameError(
                f"no such evaluator {name!r}; {did_you_mean(name, EVALUATORS) or f'known: {known}'}"
            )
        if name in _NEED_VALUES:
            _require_values(learnable)
        if name in ("td_error", "advantage_sum"):
            _discount(learnable, None)
        made[name] = EVALUATORS[name]()
    return made


# --- going through the data ---------------------------------------------------------------------


@contextlib.contextmanager
def judging(learnable: Learnable) -> Iterator[None]:
    """Lets a learnable predict without leaving a trace in its training streams."""
    streams = learnable.rng_state()
    learnable.train_mode(False)
    try:
        with torch.no_grad(), learnable.private_rng():
            yield
    finally:
        learnable.load_rng_state(streams)


def _batches(learnable: OfflineLearnable, dataset: TransitionDataset) -> Iterator[Indexed]:
    """Goes through all transitions in order: their indices, and the scaled batch."""
    first = 0
    for chunk in dataset.chunks(CHUNK):
        batch = _scaled(learnable, chunk)
        yield torch.arange(first, first + batch.size, device=learnable.device), batch
        first += batch.size


def _scaled(learnable: OfflineLearnable, chunk: Mapping[str, Tensor]) -> Batch:
    return learnable.scale_batch(Batch(**chunk).to(learnable.device))


def _mean(
    learnable: OfflineLearnable,
    dataset: TransitionDataset,
    figures: Callable[[Tensor, Batch], Tensor],
) -> float:
    """Returns the mean of ``figures(indices, batch)``, ``[B]`` each, over a data set."""
    total = _zero(learnable)
    with judging(learnable):
        for indices, batch in _batches(learnable, dataset):
            total += figures(indices, batch).to(total.dtype).sum()
    return float(total) / len(dataset)


def _zero(learnable: Learnable) -> Tensor:
    return torch.zeros((), dtype=torch.float64, device=learnable.device)


def _policy_value(learnable: Learnable, observations: Tensor) -> Tensor:
    return learnable.action_value(observations, learnable.act(observations, True))


def _require_values(learnable: Learnable) -> None:
    if type(learnable).action_value is Learnable.action_value:
        raise ConfigError(
            f"{learnable.config.get_type()!r} estimates no action values, which this evaluator "
            "needs; action_difference and environment do without"
        )


def _discount(learnable: Learnable, gamma: float | None) -> float:
    _require_values(learnable)
    found = getattr(learnable.config, "gamma", None) if gamma is None else gamma
    if not isinstance(found, int | float):
        raise ConfigError(f"{learnable.config.get_type()!r} has no gamma; give the evaluator one")
    return float(found)
