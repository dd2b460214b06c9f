"""Learning from a data set: the loop around an author's ``update``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch import Tensor

from rlreg.errors import DatasetError, not_written
from rlreg.runtime.arguments import functions, metrics_logger, named_functions, whole_number
from rlreg.runtime.batch import Batch, check_batch
from rlreg.runtime.learnable import Learnable
from rlreg.runtime.stacking import NotStackedError, StackedUpdates
from rlreg.runtime.update_results import (
    checked_update,
    other_names,
    refuse_values,
    require_finite,
    require_scalars,
)

if TYPE_CHECKING:
    from rlreg.runtime.data import TransitionDataset
    from rlreg.runtime.data.replay import ReplayBuffer
    from rlreg.runtime.environments import EnvLike

Metrics: TypeAlias = dict[str, float]
Evaluator: TypeAlias = Callable[[Any, Any], float]
"""Called with the learnable and the data set at the end of an epoch."""
Callback: TypeAlias = Callable[[Any, int, int], None]
"""Called with the learnable, the epoch and the number of updates so far, at the end of an epoch."""


class Source(Protocol):
    """What batches can be drawn from: a data set, a replay buffer."""

    def sample(self, batch_size: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Draws a batch, as `TransitionDataset.sample` does."""


CHUNK = 50
"""Updates between two looks at the clock and at signals.

Sums of metrics are formed chunk by chunk, so that an interrupted epoch gives the same bits.
"""


@dataclass(slots=True)
class PartialEpoch:
    """How far an epoch is: what has to be kept of one that is interrupted.

    Attributes:
        num_steps: Updates done in it.
        totals: Sums of the metrics over these updates.
    """

    num_steps: int = 0
    totals: dict[str, float] = field(default_factory=dict)


class OfflineLearnable(Learnable):
    """A learnable that is trained on a data set.

    An author writes ``build_networks``, ``act`` and::

        def update(self, batch):
            ...  # one gradient step on a rlreg.runtime.batch.Batch
            return {"loss": loss}

    In ``update`` the batch is checked, scaled and on the device, whoever called it. The returned
    values may be tensors: the training loop reads them once an epoch, so that no step waits for the
    device. ``config.batch_size`` is the size of a minibatch.

    Attributes:
        is_compiled: Whether the training loop runs compiled updates.
    """

    is_compiled = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        written = cls.__dict__.get("update")
        if written is not None:
            # The wrapper has the signature of what it wraps.
            cls.update = checked_update(written)  # type: ignore[assignment,method-assign]

    def update(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Does one update.

        Args:
            batch: ``observations [B, *O], actions [B, A], rewards [B], next_observations [B, *O],
                terminations [B]``, optional ``truncations [B], intervals [B]``; arrays or tensors,
                unscaled.

        Returns:
            The losses of this update.

        Raises:
            NonFiniteError: If the batch, a loss or a gradient is not finite; nothing is changed
            then. ShapeError: If an array has the wrong shape.
        """
        raise not_written(self.config.get_type(), self, "update")

    def settle_compile(self, dataset: Source, n_steps: int) -> str:
        """Decides whether a run's updates are compiled, and makes ready for it.

        ``fit`` and ``train`` call it before the first update. A learnable with a compiled path
        overrides it, together with :meth:`run_updates`, and sets ``is_compiled``.

        Args:
            dataset: Where batches come from.
            n_steps: Updates of the whole run, which ``compile="auto"`` goes by.

        Returns:
            Why, in one sentence; empty where there is nothing to choose.
        """
        del dataset, n_steps
        return ""

    def stacked_with(
        self, peers: Sequence[OfflineLearnable], dataset: TransitionDataset
    ) -> StackedUpdates:
        """Trains this learnable and its peers, equal but for their seeds, as one computation.

        A learnable with such a path overrides it, with the parts in `rlreg.runtime.stacking`. Each
        member has to end within rounding of what it becomes by itself.

        Args:
            peers: Built for the same spaces, with equal configs, at the same update.
            dataset: Where batches come from, on the device.

        Raises:
            NotStackedError: If that is not possible; seeds are then trained one by one.
        """
        del peers, dataset
        raise NotStackedError(f"{self.config.get_type()!r} has no stacked updates")

    def prepare_batch(self, raw: Mapping[str, Any]) -> Batch:
        """Checks a batch, moves it to the device and scales it."""
        return self.scale_batch(check_batch(raw, self._built()).to(self.device))

    def scale_batch(self, batch: Batch) -> Batch:
        """Applies the scalers to a batch on the device."""
        if not self.scalers():
            return batch
        parts: dict[str, Tensor] = dict(batch)
        if self.observation_scaler is not None:
            for name in ("observations", "next_observations"):
                parts[name] = self.observation_scaler.transform(parts[name])
        if self.action_scaler is not None:
            parts["actions"] = self.action_scaler.transform(parts["actions"])
        if self.reward_scaler is not None:
            parts["rewards"] = self.reward_scaler.transform(parts["rewards"])
        return Batch(**parts)

    def fit(
        self,
        dataset: TransitionDataset,
        n_steps: int,
        n_steps_per_epoch: int = 10_000,
        *,
        evaluators: Mapping[str, Evaluator] | None = None,
        callbacks: Sequence[Callback] = (),
        logger: Any = None,
        show_progress: bool = True,
    ) -> list[tuple[int, Metrics]]:
        """Trains for ``n_steps`` updates; see :meth:`fitter`.

        Args:
            dataset: Where batches come from.
            n_steps: Updates to do.
            n_steps_per_epoch: Updates between two rows of metrics.
            evaluators: Called with the learnable and the data set after each epoch.
            callbacks: Called with the learnable, epoch and updates so far after each epoch.
            logger: Anything with ``metrics(step, dict)``; nothing is written without one.
            show_progress: Whether to show a progress bar on a terminal.

        Returns:
            Epoch (from 1) and mean metrics of each epoch.
        """
        from rlreg.runtime.progress import progress

        fitter = self.fitter(
            dataset,
            n_steps,
            n_steps_per_epoch,
            evaluators=evaluators,
            callbacks=callbacks,
            logger=logger,
        )
        return list(progress(fitter, n_steps, n_steps_per_epoch, is_shown=show_progress))

    def fitter(
        self,
        dataset: TransitionDataset,
        n_steps: int,
        n_steps_per_epoch: int = 10_000,
        *,
        evaluators: Mapping[str, Evaluator] | None = None,
        callbacks: Sequence[Callback] = (),
        logger: Any = None,
    ) -> Iterator[tuple[int, Metrics]]:
        """Trains epoch by epoch: each ``next()`` runs one and gives ``(epoch, metrics)``.

        The data set is moved to the device where it fits. Networks are built and scalers fitted
        first if that is not done yet. Learning-rate schedules run over ``n_steps`` unless
        ``set_total_steps`` was called.

        Raises:
            ConfigError: If ``n_steps`` or ``n_steps_per_epoch`` is no whole number >= 1, or
                evaluators, callbacks or the logger are none.
            DatasetError: If ``dataset`` is none.
            NonFiniteError: If an update met NaN or inf, or a loss of the epoch is not finite.
            LearnerError: If what ``update`` returns is no mapping of numbers, always with the same
                names.
        """
        n_steps = whole_number("n_steps", n_steps)
        n_steps_per_epoch = whole_number("n_steps_per_epoch", n_steps_per_epoch)
        judges = named_functions("evaluators", evaluators)
        called, logger = functions("callbacks", callbacks), metrics_logger("logger", logger)
        if not all(hasattr(dataset, name) for name in ("observation_space", "sample", "to")):
            raise DatasetError(
                "expected a TransitionDataset (rlreg.load_dataset makes one), got a "
                f"{type(dataset).__name__}"
            )
        self.build_with_dataset(dataset)
        if self.total_steps is None:
            self.set_total_steps(self.grad_step + n_steps)
        resident = dataset.to(self.device)
        self.settle_compile(resident, n_steps)
        return self._epochs(resident, n_steps, n_steps_per_epoch, judges, called, logger)

    def _epochs(
        self,
        dataset: TransitionDataset,
        n_steps: int,
        n_steps_per_epoch: int,
        evaluators: Mapping[str, Evaluator],
        callbacks: Sequence[Callback],
        logger: Any,
    ) -> Iterator[tuple[int, Metrics]]:
        done, epoch = 0, 0
        while done < n_steps:
            count = min(n_steps_per_epoch, n_steps - done)
            metrics = self.train_epoch(dataset, count)
            require_finite(self, metrics, count)
            done, epoch = done + count, epoch + 1
            for name, evaluator in evaluators.items():
                metrics[name] = float(evaluator(self, dataset))
            self._end_epoch(epoch, metrics, callbacks, logger)
            yield epoch, metrics

    def _end_epoch(
        self, epoch: int, metrics: Metrics, callbacks: Sequence[Callback], logger: Any
    ) -> None:
        for callback in callbacks:
            callback(self, epoch, self.grad_step)
        if logger is not None:
            logger.metrics(self.grad_step, metrics)

    def fit_online(
        self,
        env: EnvLike,
        buffer: ReplayBuffer | None = None,
        n_steps: int = 1_000_000,
        n_steps_per_epoch: int = 10_000,
        *,
        update_interval: int = 1,
        n_updates: int = 1,
        update_start_step: int = 0,
        random_steps: int = 0,
        steps_done: int = 0,
        eval_env: EnvLike | None = None,
        n_episodes: int = 10,
        callbacks: Sequence[Callback] = (),
        logger: Any = None,
        show_progress: bool = True,
    ) -> list[tuple[int, Metrics]]:
        """Goes on training in an environment, on old and new transitions alike.

        Actions are drawn with :meth:`sample_action`. One set of scalers, the learnable's, serves
        the data set and what is collected. Learning-rate schedules that run over the whole run end
        with the last update of this call. Called again with the same buffer, training goes on, in a
        new episode.

        To go on after an interruption, restore the learnable (``save``, ``rlreg.load``) and the
        buffer (``state_dict``, ``load_state_dict``) and say how many of ``n_steps`` are done. Saved
        between two episodes, the rest is bit for bit the same on a CPU, if all that is random in
        the environment comes from ``reset(seed=...)``: every episode has a seed of its own. Saved
        within one, the rest begins with a new episode. Updates are compiled with ``compile="on"``
        alone: with few of them between two steps, ``auto`` does not find that it pays.

        Args:
            env: One environment, or what makes one; reset with the learnable's seed.
            buffer: Where transitions are kept, e.g. ``ReplayBuffer(dataset=dataset)``; a new, empty
                one of a million if ``None``.
            n_steps: Steps of the environment.
            n_steps_per_epoch: Steps between two rows of metrics.
            update_interval: Steps from one round of updates to the next.
            n_updates: Updates in a round.
            update_start_step: Steps before the first round.
            random_steps: Steps with uniformly random actions at the beginning.
            steps_done: Steps of ``n_steps`` that were done before this call.
            eval_env: Where the best actions are evaluated after each epoch.
            n_episodes: Episodes of that evaluation.
            callbacks: Called with the learnable, epoch and updates so far after each epoch.
            logger: Anything with ``metrics(step, dict)``; the step counts updates.
            show_progress: Whether to show a progress bar on a terminal.

        Returns:
            Epoch (from 1) and metrics of each epoch.

        Raises:
            ConfigError: If a number is out of range, another argument is none of its kind, or a
                scaler was never fitted.
            EnvironmentSpecError: If the environment has other spaces than the learnable.
            NonFiniteError: If the environment or an update gave NaN or inf.
        """
        from rlreg.runtime.finetune import OnlineSettings, fit_online
        from rlreg.runtime.progress import progress

        called, logger = functions("callbacks", callbacks), metrics_logger("logger", logger)
        often = (update_interval, n_updates, update_start_step, random_steps)
        settings = OnlineSettings(n_steps, n_steps_per_epoch, *often, steps_done)

        def end(epoch: int, metrics: Metrics) -> None:
            if eval_env is not None:
                result = self.evaluate(eval_env, n_episodes)
                metrics["evaluation/mean_return"] = result.mean_return
            self._end_epoch(epoch, metrics, called, logger)

        epochs = fit_online(self, env, buffer, settings, self._update_on, end)
        return list(progress(epochs, n_steps, n_steps_per_epoch, is_shown=show_progress))

    def train_epoch(
        self,
        dataset: TransitionDataset,
        n_steps: int,
        *,
        partial: PartialEpoch | None = None,
        tick: Callable[[int], None] | None = None,
    ) -> Metrics:
        """Does ``n_steps`` updates on minibatches of ``dataset`` and returns their mean metrics.

        Args:
            dataset: Where batches come from.
            n_steps: Updates of the whole epoch.
            partial: Where the epoch stands; kept up to date, so that it can be saved at any tick.
            tick: Called with the number of updates just done, every :data:`CHUNK` updates; what it
                raises ends the epoch there, in a state that can be saved.
        """
        partial = PartialEpoch() if partial is None else partial
        self.train_mode(True)
        while partial.num_steps < n_steps:
            rest = CHUNK - partial.num_steps % CHUNK
            count = min(rest, n_steps - partial.num_steps)
            with self.private_rng():
                totals = self.run_updates(dataset, count)
            for name, total in totals.items():
                partial.totals[name] = partial.totals.get(name, 0.0) + float(total)
            partial.num_steps += count
            if tick is not None:
                tick(count)
        return {name: total / n_steps for name, total in partial.totals.items()}

    def run_updates(self, dataset: Source, n_steps: int) -> dict[str, Tensor]:
        """The inner loop; a learnable with a faster one (compiled, graphed) overrides it.

        Returns:
            Sums of the metrics over the updates, as tensors on the device.
        """
        return self._update_on(dataset, n_steps)

    def _update_on(self, source: Source, n_steps: int) -> dict[str, Tensor]:
        size: int = self.config.batch_size  # type: ignore[attr-defined]  # an offline config has it
        totals: dict[str, Tensor] = {}
        for index in range(n_steps):
            batch = self.scale_batch(Batch(**source.sample(size, self.generator)))
            metrics = self.update(batch)
            if index and metrics.keys() != totals.keys():
                raise other_names(self, totals, metrics)
            try:
                for name, value in metrics.items():
                    amount = torch.as_tensor(value, dtype=torch.float64)
                    totals[name] = totals[name] + amount if name in totals else amount
            except (TypeError, ValueError, RuntimeError):
                refuse_values(self, metrics)
            self.grad_step += 1
        return require_scalars(self, totals)
