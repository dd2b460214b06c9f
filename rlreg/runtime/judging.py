"""How the policy of a run is judged: in its environment, on its data, and beside baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlreg.run_config import RunConfig
from rlreg.runtime.baselines import CLONED_SHARES, evaluate_cloning
from rlreg.runtime.data.dataset import References, TransitionDataset
from rlreg.runtime.environments import EnvLike
from rlreg.runtime.evaluation import Evaluation, evaluate, evaluate_random
from rlreg.runtime.learnable import Learnable
from rlreg.runtime.offline import Evaluator


@dataclass(frozen=True, slots=True)
class Judge:
    """How the policy of a run is judged.

    Attributes:
        env: Where; ``None`` if nowhere.
        references: What makes a return a score.
        behaviour: What the policies that made the data set achieved in it, if there is one.
        dataset: What the run learns from, if that is a data set.
        evaluators: Figures of the learnable on it, by name.
    """

    env: EnvLike | None
    references: References | None
    behaviour: Evaluation | None = None
    dataset: TransitionDataset | None = None
    evaluators: Mapping[str, Evaluator] = field(default_factory=dict)

    def evaluate(
        self, learnable: Learnable, run: RunConfig, tick: Callable[[], None]
    ) -> Evaluation:
        """Evaluates the policy as the run says."""
        assert self.env is not None
        settings = run.evaluation
        return evaluate(
            learnable,
            self.env,
            settings.n_episodes,
            settings.seed,
            deterministic=settings.deterministic,
            references=self.references,
            tick=tick,
        )

    def figures(self, learnable: Learnable) -> dict[str, float]:
        """Returns what the evaluators of the run say."""
        return {name: float(one(learnable, self.dataset)) for name, one in self.evaluators.items()}

    def baselines(
        self, run: RunConfig, learnable: Learnable, tick: Callable[[], None]
    ) -> dict[str, Any]:
        """Measures what the run is compared with, in the order of its settings."""
        found: dict[str, Any] = {}
        for name in run.evaluation.baselines:
            result = self._baseline(name, run, learnable, tick)
            if result is not None:
                found[name] = result.to_json()
        return found

    def _baseline(
        self, name: str, run: RunConfig, learnable: Learnable, tick: Callable[[], None]
    ) -> Evaluation | None:
        if name == "behaviour":
            return self.behaviour
        if self.env is None:
            return None
        settings = run.evaluation
        if name == "random":
            return evaluate_random(
                self.env,
                settings.n_episodes,
                settings.seed,
                references=self.references,
                tick=tick,
            )
        assert name in CLONED_SHARES
        assert self.dataset is not None  # settled: only an offline run may ask for it
        return evaluate_cloning(
            name,
            self.dataset,
            self.env,
            run,
            device=learnable.device,
            references=self.references,
            tick=tick,
        )
