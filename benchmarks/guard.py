"""Fails where something became much slower: ratios of CPU time against benchmarks/floors.json.

    python benchmarks/guard.py [--repeats N] [--floors FILE]

Nothing is compared with a figure of another machine: each ratio is that of two programs in this
run, in turns, of the least CPU time of one thread, which hardly moves on a busy machine. A floor is
about 0.8 of what was measured; at 100 x 512, of the lower of two: the loop's memory comes
from the system at every call or never, depending on what was allocated before. Exits with 3 if
anything fell.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import startup
import torch
from torch import nn
from torch.nn import functional
from vtrace import SHAPES, index_loop, make_inputs

import rlreg
from rlreg.runtime.bench import Workload
from rlreg.runtime.data.generate import generate
from rlreg_impala.vtrace import from_importance_weights

FLOORS = Path(__file__).resolve().parent / "floors.json"
Case = tuple[str, Callable[[], object], Callable[[], object], int]


def least(functions: list[Callable[[], object]], calls: int, repeats: int) -> list[float]:
    """Returns the least CPU seconds of a call of each, measured in turns."""
    found = [float("inf")] * len(functions)
    for _ in range(repeats):
        for index, function in enumerate(functions):
            begun = time.thread_time()
            for _ in range(calls):
                function()
            found[index] = min(found[index], (time.thread_time() - begun) / calls)
    return found


def vtrace_cases() -> Iterator[Case]:
    for T, B in SHAPES:
        inputs = make_inputs(T, B)
        yield (
            f"V-trace {T} x {B}: loop over rows / ours",
            lambda inputs=inputs: index_loop(*inputs),
            lambda inputs=inputs: from_importance_weights(*inputs),
            10,
        )


class Reference:
    """IQL's update as one would write it down: eager, optimizers as torch has them."""

    def __init__(self, observation_size: int, action_size: int) -> None:
        both = observation_size + action_size
        self.critics, self.targets = [[self.network(both, 1) for _ in range(2)] for _ in range(2)]
        self.value = self.network(observation_size, 1)
        self.actor = self.network(observation_size, action_size)
        self.log_std = nn.Parameter(torch.zeros(action_size))
        critics = [p for module in [*self.critics, self.value] for p in module.parameters()]
        self.critic_optim = torch.optim.Adam(critics, 3e-4)
        self.actor_optim = torch.optim.Adam([*self.actor.parameters(), self.log_std], 3e-4)

    @staticmethod
    def network(inputs: int, outputs: int) -> nn.Sequential:
        parts = [nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
        return nn.Sequential(*parts, nn.Linear(256, outputs))

    def update(self, batch: dict[str, torch.Tensor]) -> None:
        observations, actions = batch["observations"], batch["actions"]
        both = torch.cat([observations, actions], dim=1)
        with torch.no_grad():
            target = torch.min(*[critic(both)[:, 0] for critic in self.targets])
            following = self.value(batch["next_observations"])[:, 0]
            wanted = batch["rewards"] + 0.99 * (1 - batch["terminations"]) * following
        difference = target - self.value(observations)[:, 0]
        loss = ((0.7 - (difference < 0).float()).abs() * difference.square()).mean()
        for critic in self.critics:
            loss = loss + functional.mse_loss(critic(both)[:, 0], wanted)
        self.critic_optim.zero_grad()
        loss.backward()
        self.critic_optim.step()
        with torch.no_grad():
            advantage = target - self.value(observations)[:, 0]
            weight = (3.0 * advantage).exp().clamp(max=100.0)
        spread = self.log_std.exp()
        normal = torch.distributions.Normal(self.actor(observations).tanh(), spread)
        loss = -(weight * normal.log_prob(actions).sum(dim=1)).mean()
        self.actor_optim.zero_grad()
        loss.backward()
        self.actor_optim.step()
        with torch.no_grad():
            for critic, slow in zip(self.critics, self.targets, strict=True):
                for own, old in zip(critic.parameters(), slow.parameters(), strict=True):
                    old.lerp_(own, 0.005)


def iql_cases() -> Iterator[Case]:
    workload = Workload(20_000)
    dataset = workload.dataset()
    learnable: Any = rlreg.create("iql", device="cpu", compile="off")
    learnable.build_with_dataset(dataset)
    reference = Reference(workload.observation_size, workload.action_size)
    draws = torch.Generator().manual_seed(0)

    def draw() -> dict[str, torch.Tensor]:
        return dataset.sample(256, draws)

    def ours() -> None:
        learnable.train_epoch(dataset, 5)

    def theirs() -> None:
        for _ in range(5):
            reference.update(draw())

    yield "IQL, not compiled: plain torch / ours", theirs, ours, 1
    yield "IQL: update / drawing its batch", lambda: reference.update(draw()), draw, 5
    rng = np.random.default_rng(0)
    observation = rng.standard_normal(workload.observation_size, dtype=np.float32)
    rows = torch.from_numpy(observation)[None]

    @torch.no_grad()
    def bare() -> None:
        for _ in range(100):
            learnable.act(rows, True)

    def predict() -> None:
        for _ in range(100):
            learnable.predict(observation)

    yield "predict, one observation: network alone / predict", bare, predict, 1


def mapped_case(folder: Path) -> Iterator[Case]:
    import h5py

    workload = Workload(100_000)
    source = workload.dataset()
    path = folder / "transitions.hdf5"
    with h5py.File(path, "w") as file:
        for name, part in {
            "observations": source.observations, "next_observations": source.next_observations,
            "actions": source.actions, "rewards": source.rewards,
            "terminals": source.terminations, "timeouts": source.truncations,
        }.items():  # fmt: skip
            file[name] = np.asarray(part)
    resident = rlreg.load_dataset(str(path), memory_map=False)
    mapped = rlreg.load_dataset(str(path), memory_map=True)
    draws = torch.Generator().manual_seed(0)
    yield (
        "batches: from memory / from a mapped file",
        lambda: resident.sample(256, draws),
        lambda: mapped.sample(256, draws),
        50,
    )


def cpu_of(*words: str) -> float:
    """Returns the CPU seconds of a fresh process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        words, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "COLUMNS": "80"}
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def list_ratio(repeats: int) -> float:
    listing = str(Path(sys.executable).with_name("rlreg"))
    pairs = [
        (cpu_of(sys.executable, "-c", "import pydantic, pluggy"), cpu_of(listing, "list"))
        for _ in range(repeats)
    ]
    return min(base for base, _ in pairs) / min(ours for _, ours in pairs)


def train_ratio(folder: Path, repeats: int) -> float:
    os.environ.update(MINARI_DATASETS_PATH=str(folder), OMP_NUM_THREADS="1")
    generate(startup.DATASET, n_steps=2000)
    _, (plain, base), _, (training, ours), *_ = startup.programs(folder)
    times: startup.Times = {"cpu": {}, "wall": {}}
    for _ in range(repeats):
        startup.run(base, plain, times)
        startup.run(ours, training, times)
        shutil.rmtree(folder / "run")
    return min(times["cpu"][startup.PLAIN]) / min(times["cpu"][startup.UPDATED])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--floors", type=Path, default=FLOORS)
    arguments = parser.parse_args()
    repeats, floors = arguments.repeats, json.loads(arguments.floors.read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RLREG_CACHE"] = folder
        for cases in (vtrace_cases(), iql_cases(), mapped_case(Path(folder))):
            for name, base, ours, calls in cases:
                slow, fast = least([base, ours], calls, repeats)
                found[name] = slow / fast
        found["rlreg list: import of pydantic and pluggy / all of it"] = list_ratio(min(repeats, 7))
        name = "rlreg train iql: import of torch, plain read / up to the first update"
        found[name] = train_ratio(Path(folder), min(repeats, 5))
    if floors.keys() != found.keys():
        print(f"{arguments.floors}: expected a floor for each of {sorted(found)}")
        return 2
    fallen = [name for name in floors if found[name] < floors[name]]
    for name, ratio in found.items():
        mark = "FELL" if name in fallen else ""
        print(f"{name:<60} {ratio:7.2f}  floor {floors[name]:.2f} {mark}".rstrip())
    return 3 if fallen else 0


if __name__ == "__main__":
    sys.exit(main())
