"""What the parts of IMPALA on Ray take on this machine: the numbers that the simulation is fed.

Actor, learner and engine are the real ones; of Ray's calls each is timed with objects of the real
size. Everything is a median over repetitions, in seconds, with one thread.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import torch
from event_simulation import Timings

import rlreg
from rlreg_impala.acting import Actor
from rlreg_impala.batches import FragmentBatch
from rlreg_impala.buffers import FragmentBuffers, FragmentLayout
from rlreg_impala.components import RayEngineConfig
from rlreg_impala.engines.ray import RayEngine, _Member
from rlreg_impala.engines.tickets import Ledger, Ticket
from rlreg_impala.learner import make_learner
from rlreg_impala.model import TorchActorCritic
from rlreg_impala.policy import FlatWeights
from rlreg_impala.rollouts import EngineSpec
from rlreg_impala.streams import Streams
from rlreg_impala.trainer import MultiStepIMPALA

PRESET, ENVS = "impala/throughput", 64
REPEATS = 30


def cartpole() -> Any:
    """Makes one environment."""
    return gymnasium.make("CartPole-v1")


def median(function: Callable[[], Any], repeats: int = REPEATS, *, cpu: bool = False) -> float:
    """Returns the median seconds of a call, after one that does not count."""
    clock = time.process_time if cpu else time.perf_counter
    function()
    times = []
    for _ in range(repeats):
        begun = clock()
        function()
        times.append(clock() - begun)
    return statistics.median(times)


class Parts:
    """Model, learner, and an actor in this process.

    Args:
        width: Units of both hidden layers of policy and critic.
    """

    def __init__(self, width: int) -> None:
        sizes = [f"learnable.{part}_encoder_factory.hidden_units=[{width}, {width}]"
                 for part in ("actor", "critic")]  # fmt: skip
        document = {"learnable": {"type": "impala"}}
        run = rlreg.load_config(document, preset=PRESET, overrides=sizes)
        self.config: Any = run.learnable
        env = cartpole()
        self.model = TorchActorCritic.of(self.config, env.observation_space, env.action_space)
        self.learner = make_learner(self.model, self.config)
        self.learner.progress.plan("transitions", 10**12)
        self.learner.start_schedules(self.config.n_rollout_steps * ENVS)
        self.flat = FlatWeights(self.model.policy)
        self.spec = self.engine_spec(1)
        policy = self.model.policy_spec()
        self.layout = FragmentLayout.of(self.spec, policy, policy.make())
        self.slot = FragmentBuffers.slot(self.layout.allocate(1), 0)
        streams = Streams(np.random.SeedSequence(0), 0, 0)
        self.actor = Actor(self.spec, policy, cartpole, streams)
        self.sequence = 0
        self.weights = self.flat.pack()

    def engine_spec(self, actors: int) -> EngineSpec:
        """Returns the engine's sizes with so many actors."""
        return EngineSpec.of(
            self.engine(actors),
            unroll_length=self.config.n_rollout_steps,
            batch_size=self.config.actors_batch_size,
        )

    @staticmethod
    def engine(actors: int) -> RayEngineConfig:
        """Returns the engine's config; actors share the cores of this machine."""
        return RayEngineConfig(
            num_actors=actors, num_envs=ENVS, queue_out_of_sync_factor=2.0, num_cpus_per_actor=0.0
        )

    def fill(self) -> None:
        """Makes one fragment."""
        self.actor.fill(self.slot, 0, self.sequence)
        self.sequence += 1

    def returned(self) -> dict[str, Any]:
        """Returns what a Ray actor would."""
        return {"header": self.slot.header, "seconds": self.slot.seconds, **self.slot.trimmed()}

    def learn(self) -> None:
        """Joins, updates and packs."""
        # Read-only like Ray's arrays, which a batch has to copy.
        arrays = {name: array.view() for name, array in self.returned().items()}
        for array in arrays.values():
            array.flags.writeable = False
        fragment = FragmentBuffers(**arrays).fragment(None)
        self.learner.update(FragmentBatch.of([fragment], torch.device("cpu")))
        self.flat.pack()


class Echo:
    """Lives in a Ray actor and answers at once, or after a while."""

    def __init__(self, fragment: dict[str, Any]) -> None:
        self._fragment = {name: np.array(array) for name, array in fragment.items()}

    def fragment(self, weights: Any) -> dict[str, Any]:
        """Returns a fragment."""
        del weights
        return self._fragment

    def nothing(self, weights: Any) -> None:
        """Returns nothing."""
        del weights

    def sleep(self, seconds: float) -> None:
        """Keeps the calls behind it waiting."""
        time.sleep(seconds)


@contextlib.contextmanager
def local_ray() -> Iterator[Any]:
    """Starts Ray on this machine, whatever else runs."""
    # Ray's processes are nice by default: whatever else the machine does would slow them alone.
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - as Ray spells it
    import ray

    ray.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False,
        logging_level="ERROR", object_store_memory=500_000_000,
    )  # fmt: skip
    try:
        yield ray
    finally:
        ray.shutdown()


def calls(ray: Any, parts: Parts) -> tuple[dict[str, float], Any]:
    """Times Ray's calls with a real fragment and real weights; returns an actor too."""
    echo = ray.remote(num_cpus=0)(Echo).remote(parts.returned())
    small = ray.put(np.zeros(1, np.float32))
    put = median(lambda: ray.put(parts.weights))
    submits, gets, trips, empty, weighted = [], [], [], [], []
    for turn in range(REPEATS + 5):
        begun = time.perf_counter()
        reference = echo.fragment.remote(small)
        submitted = time.perf_counter()
        ray.wait([reference], num_returns=1)
        waited = time.perf_counter()
        FragmentBuffers(**ray.get(reference))
        done = time.perf_counter()
        ray.wait([echo.nothing.remote(small)], num_returns=1)
        answered = time.perf_counter()
        fresh = ray.put(parts.weights)
        again = time.perf_counter()
        ray.wait([echo.nothing.remote(fresh)], num_returns=1)
        if turn >= 5:  # connections are made in the first
            submits.append(submitted - begun)
            gets.append(done - waited)
            trips.append(waited - begun)
            empty.append(answered - done)
            weighted.append(time.perf_counter() - again)
    round_trip = statistics.median(empty)
    submit = statistics.median(submits)
    found = {
        "put": put, "submit": submit, "get": statistics.median(gets),
        "latency": max(round_trip - submit, 0.0),
        "give_back": max(statistics.median(trips) - round_trip, 0.0),
        "weights in": max(statistics.median(weighted) - round_trip, 0.0),
    }  # fmt: skip
    return found, echo


def driver(ray: Any, echo: Any, parts: Parts, actors: int) -> dict[str, float]:
    """Times what the engine does for all actors, with so many calls that have not returned."""
    spec = parts.engine_spec(actors)
    engine = RayEngine(spec)
    gate = echo.sleep.remote(1.0 + actors / 200)
    small = ray.put(np.zeros(1, np.float32))
    engine._members = [_Member(index, handle=echo) for index in range(actors)]
    for member in engine._members:
        ticket = Ticket(member.index, member.index, member.index, 0, 0)
        member.call = echo.nothing.remote(small), ticket
        member.probed_at = time.monotonic() + 1e6
    look = median(lambda: engine._harvest(0.0), 10)
    watch = max(median(lambda: engine._advance(0.0), 10) - look, 0.0)
    ledger, able = Ledger(actors, spec.num_slots, deterministic=False), range(actors)
    for ticket in ledger.assign(0, able)[:1]:
        ledger.arrive(ticket.slot)

    def turn() -> None:
        taken = ledger.take(1)
        assert taken is not None
        ledger.release(taken)
        for ticket in ledger.assign(0, able):
            ledger.arrive(ticket.slot)

    ticket_s = median(turn, 10)
    ray.get([gate, *(member.call[0] for member in engine._members if member.call)])
    return {"look": look, "watch": watch, "ticket": ticket_s}


def timings_of(parts: Parts, ray: Any, counts: list[int]) -> dict[int, Timings]:
    """Measures everything; returns the timings for each number of actors."""
    torch.set_num_threads(1)
    fill = median(parts.fill, cpu=True)
    load = median(lambda: parts.actor.load_flat(parts.weights))
    learn = median(parts.learn)
    found, echo = calls(ray, parts)
    same = {
        "fill": fill, "load": load + found.pop("weights in"), "learn": learn, **found,
        "fragment_bytes": float(sum(array.nbytes for array in parts.returned().values())),
        "weight_bytes": float(parts.weights.nbytes),
    }  # fmt: skip
    made = {count: Timings(**same, **driver(ray, echo, parts, count)) for count in counts}
    ray.kill(echo)
    return made


def real_rate(parts: Parts, actors: int, seconds: float) -> float:
    """Returns the updates a second of the real engine, after a warm-up."""
    session = MultiStepIMPALA(
        parts.model, parts.engine(actors), None, parts.config, env_factory=cartpole,
        learner=parts.learner,
    )  # fmt: skip
    try:
        session.start()
        for _ in range(4 * actors + 4):
            session.update()
        begun, count = time.perf_counter(), 0
        while (passed := time.perf_counter() - begun) < seconds:
            session.update()
            count += 1
        return count / passed
    finally:
        session.stop()
