"""What a run leaves open, filled in as its regime has it, without opening anything.

Training does it before it writes ``run.yaml``; a hash, a comparison and an explanation do the same,
so that a file and the folder of a run made from it mean the same to them.
"""

from __future__ import annotations

from typing import Any

from rlreg.run_config import RunConfig

DEFAULT_DATASET = "rlreg/pendulum/mixed-v0"
DEFAULT_UPDATES = 10_000
DEFAULT_TRANSITIONS = 100_000
EPOCH_LENGTH = 25
"""Updates in an epoch of an online run that counts epochs (Maze)."""


def fill_in(run: RunConfig) -> RunConfig:
    """Returns the run with a value for everything whose default depends on the regime.

    What only training can settle (the environment of a data set, whether to compile, the engine)
    stays as it is; so does what belongs to the other regime.
    """
    is_online = run.learnable.regime == "online"
    train: dict[str, Any] = {}
    if is_online and run.train.n_steps is None and run.train.n_epochs is None:
        train["n_steps"] = DEFAULT_TRANSITIONS
    if is_online and run.train.n_epochs is not None and run.train.epoch_length is None:
        train["epoch_length"] = EPOCH_LENGTH
    if not is_online and run.train.n_steps is None:
        train["n_steps"] = DEFAULT_UPDATES
    update: dict[str, Any] = {"train": run.train.model_copy(update=train)}
    if run.evaluation.at_start is None:
        update["evaluation"] = run.evaluation.model_copy(update={"at_start": is_online})
    if run.name is None:
        update["name"] = run.learnable.get_type()
    if not is_online and run.dataset is None:
        update["dataset"] = DEFAULT_DATASET
    return run.model_copy(update=update)
