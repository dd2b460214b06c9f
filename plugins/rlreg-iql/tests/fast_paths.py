"""What tests of IQL's fast paths share: data, learnables and the comparison of two of them."""

import numpy as np
import torch
from gymnasium import spaces

import rlreg

SMALL = {"type": "vector", "hidden_units": [8, 8]}
NORMED = {"type": "vector", "hidden_units": [8, 6], "use_layer_norm": True, "activation": "geglu"}
COSINE = {"type": "cosine_annealing"}
WARMUP = {"type": "warmup", "warmup_steps": 7}
VARIANTS = {
    "defaults": {},
    "state dependent": {"actor_kind": "normal_state_dependent"},
    "deterministic": {"actor_kind": "deterministic"},
    "five critics": {"n_critics": 5, "critic_encoder_factory": NORMED},
    "own value rate": {"value_learning_rate": 1e-2},
    "clipped and scheduled": {
        "actor_optim_factory": {
            "type": "adam", "clip_grad_norm": 0.05,
            "lr_scheduler_factory": COSINE,
        },
        "critic_optim_factory": {
            "type": "adam_w", "weight_decay": 0.01, "clip_grad_norm": 0.05,
            "lr_scheduler_factory": WARMUP,
        },
    },
    "scalers": {
        "observation_scaler": {"type": "standard"},
        "reward_scaler": {"type": "return"},
        "action_scaler": {"type": "min_max"},
    },
}  # fmt: skip
"""Settings that every fast path takes."""


def make_data(device="cpu", size=400, *, bad_row=None, seed=0):
    rng = np.random.default_rng(seed)
    rewards = rng.normal(size=size).astype(np.float32)
    if bad_row is not None:
        rewards[bad_row] = np.nan
    data = rlreg.TransitionDataset.from_arrays(
        rng.normal(size=(size, 3)).astype(np.float32),
        rng.uniform(-2, 2, (size, 2)).astype(np.float32),
        rewards,
        rng.random(size) < 0.1,
        next_observations=rng.normal(size=(size, 3)).astype(np.float32),
        action_space=spaces.Box(-2, 2, (2,), np.float32),
        allow_non_finite=True,
    )
    return data.to(device)


def make(data, mode, *, n_steps=1000, **settings):
    for name in ("actor", "critic", "value"):
        settings.setdefault(f"{name}_encoder_factory", SMALL)
    settings.setdefault("batch_size", 32)
    learnable = rlreg.create("iql", device=str(data.device), seed=3, compile=mode, **settings)
    learnable.build_with_dataset(data)
    learnable.set_total_steps(n_steps)
    learnable.settle_compile(data, n_steps)
    return learnable


def numbers(value, path=""):
    """Returns every tensor and number of a state by its path."""
    if isinstance(value, torch.Tensor):
        return {path: value.detach().cpu().clone()}
    if isinstance(value, int | float):
        return {path: torch.tensor(float(value))}
    parts = value.items() if isinstance(value, dict) else enumerate(value or ())
    found = {}
    for key, part in parts if not isinstance(value, str) else ():
        found.update(numbers(part, f"{path}/{key}"))
    return found


def assert_close(first, second, tolerance=1e-5):
    one, two = numbers(first.state_dict()), numbers(second.state_dict())
    assert one.keys() == two.keys()
    for path, value in one.items():
        exact = path.startswith(("/rng", "/counters"))
        own = 0.0 if exact else tolerance
        torch.testing.assert_close(value, two[path], rtol=own, atol=own, msg=path)
