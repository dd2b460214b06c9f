"""The one acting loop: N environments, one policy, fragments of T rows. Every engine runs it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlreg.errors import CheckpointError, EnvironmentSpecError, RlregError, RolloutError

from .buffers import FragmentBuffers
from .env_group import BadEnvironmentError, EnvGroup, Row, split
from .env_making import make_group
from .progress import ACTING, ENV, IDLE, PHASE, STEP, VERSION, Progress, new_progress
from .rollouts import ActingPolicy, EngineSpec, EngineState, EnvFactory, PolicySpec
from .separate_envs import SeparateEnvs
from .streams import Streams


class Actor:
    """Fills fragments, one after the other, without ever losing or repeating a step.

    Between two fragments it keeps the row that they share: the last observations, whether they
    begin an episode, whether the next row is a reset row, and the state of the core.
    """

    def __init__(
        self,
        spec: EngineSpec,
        policy_spec: PolicySpec,
        env_factory: EnvFactory,
        streams: Streams,
        *,
        progress: Progress | None = None,
    ) -> None:
        """Makes policy and environments, and begins the first episodes.

        Args:
            spec: Sizes, and whether the actor must be able to go on bit for bit.
            policy_spec: Builds the policy.
            env_factory: Builds the environments.
            streams: Where random numbers come from.
            progress: Where to note what is being done.

        Raises:
            EnvironmentSpecError: If the environments cannot be made or do not fit the policy.
            RolloutError: If the first reset fails.
        """
        self.streams = streams
        self._spec = spec
        self._progress = new_progress() if progress is None else progress
        self._policy: ActingPolicy = policy_spec.make()
        self._codec = policy_spec.codec
        self._initial = self._policy.initial_state(1)  # [1, S]
        self._state = np.repeat(self._initial, spec.num_envs, axis=0)  # [N, S]
        with self._blame("making the environments", EnvironmentSpecError):
            self._group = make_group(
                env_factory,
                spec.num_envs,
                policy_spec.observation_space,
                streams,
                self._progress,
                can_replay=spec.deterministic,
            )
        self._border = 0
        self._log: deque[NDArray[Any]] = deque()
        self._begin()

    @property
    def group(self) -> EnvGroup:
        """The environments."""
        return self._group

    def load_flat(self, weights: NDArray[np.float32]) -> None:
        """Takes new weights for the fragments to come."""
        self._policy.load_flat(weights)

    def close(self) -> None:
        """Closes the environments."""
        self._group.close()

    def fill(
        self,
        out: FragmentBuffers,
        version: int,
        sequence: int,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Acts for T rows.

        Args:
            out: Where to write.
            version: Version of the weights that were loaded last.
            sequence: Number of the fragment; it decides the random numbers of the policy.
            should_stop: Asked once per row; makes the actor give the fragment up.

        Returns:
            Whether the fragment is complete.

        Raises:
            RolloutError: If policy or environment fail, naming actor, environment and step.
        """
        started = time.perf_counter()
        self._progress[VERSION] = version
        self._progress[PHASE] = ACTING
        out.observations[0] = self._observations
        out.starts[0] = self._starts
        out.core_state[...] = self._state
        first_step = self._progress[STEP]
        for array in (out.terminations, out.truncations, out.resets, out.starts[1:]):
            array[...] = False
        try:
            with self._blame("acting", RolloutError):
                finals = self._act(out, self.streams.policy(sequence), should_stop)
        except RolloutError:
            # NaN that an environment gave may be what the policy or the environment choked on.
            self._check_finite(out, first_step)
            raise
        if finals is None:
            return False
        self._check_finite(out, first_step)
        self._keep_finals(out, finals)
        self._keep_episodes(out)
        if self._spec.deterministic and self._group.can_replay:
            self._remember(out.actions)
        out.header[:3] = (self.streams.actor, version, sequence)
        out.seconds[0] = time.perf_counter() - started
        self._observations[...] = out.observations[-1]
        self._starts[...] = out.starts[-1]
        self._progress[PHASE] = IDLE
        return True

    def _act(
        self, out: FragmentBuffers, rng: np.random.Generator, should_stop: Callable[[], bool]
    ) -> list[tuple[int, int, NDArray[Any]]] | None:
        """Runs the T rows; returns ``(t, n, observation)`` of episodes cut in the same step."""
        policy, codec, group, progress = self._policy, self._codec, self._group, self._progress
        state, pending, on_next_step = self._state, self._pending, group.resets_on_next_step
        found: list[tuple[int, int, NDArray[Any]]] = []
        any_pending = bool(pending.any())
        for t in range(self._spec.unroll_length):
            if should_stop():
                return None
            actions, log_probs, state = policy.act(out.observations[t], state, rng)
            out.actions[t] = actions
            out.log_probs[t] = log_probs
            row = Row(
                out.observations[t + 1], out.rewards[t], out.terminations[t], out.truncations[t], []
            )
            any_done = group.step(codec.to_env(actions), row)
            progress[STEP] += 1
            if not (any_pending or any_done):
                continue
            if any_pending:
                self._mask(out, t, row)
                any_pending = False
            if any_done:
                done = row.terminations | row.truncations
                if on_next_step:
                    pending[...] = done
                    any_pending = bool(done.any())
                else:
                    out.starts[t + 1] = done
                    found.extend((t, n, final) for n, final in row.finals)
            starts = out.starts[t + 1]
            state = np.where(starts[:, None], self._initial, state)
        self._state = state
        return found

    def _mask(self, out: FragmentBuffers, t: int, row: Row) -> None:
        """Books the rows in which an environment only began anew."""
        pending = self._pending
        out.resets[t] = pending
        out.starts[t + 1] = pending
        row.rewards[pending] = 0.0
        row.terminations[pending] = False
        row.truncations[pending] = False
        pending[...] = False

    # --- what a fragment is checked for and completed with ----------------------------------------

    def _check_finite(self, out: FragmentBuffers, first_step: int) -> None:
        """Refuses NaN and inf; once for the whole fragment, which costs less than at every step."""
        done = self._progress[STEP] - first_step  # rows
        rewards, observations = out.rewards[:done], out.observations[: done + 1]
        is_image = observations.dtype.kind != "f"
        if np.isfinite(rewards).all() and (is_image or np.isfinite(observations).all()):
            return
        flat = observations.reshape(done + 1, self._spec.num_envs, -1)
        bad = ~np.isfinite(flat).all(axis=-1)  # [rows + 1, N]
        bad[1:] |= ~np.isfinite(rewards)
        t, n = np.argwhere(bad)[0].tolist()
        is_reward = t > 0 and not np.isfinite(rewards[t - 1, n])
        what = f"reward {rewards[t - 1, n]}" if is_reward else "observation"
        place = self._place("acting" if t else "resetting", n, first_step + t)
        raise BadEnvironmentError(f"{place}the {what} is not finite")

    def _keep_finals(
        self, out: FragmentBuffers, finals: list[tuple[int, int, NDArray[Any]]]
    ) -> None:
        for index, (t, n, observation) in enumerate(finals):
            out.final_rows[index] = (t, n)
            out.final_observations[index] = observation
        out.header[3] = len(finals)

    def _keep_episodes(self, out: FragmentBuffers) -> None:
        """Adds up returns and lengths, at the fragment's end and not at every step."""
        real = ~out.resets
        count = 0
        ends = np.argwhere(out.terminations | out.truncations).tolist()
        first = [0] * self._spec.num_envs
        for t, n in ends:
            rewards = out.rewards[first[n] : t + 1, n]
            total = self._returns[n] + rewards.sum(dtype=np.float64)
            length = self._lengths[n] + np.count_nonzero(real[first[n] : t + 1, n])
            out.episode_returns[count], out.episode_lengths[count] = total, length
            self._returns[n], self._lengths[n], first[n] = 0.0, 0, t + 1
            count += 1
        out.header[4] = count
        if not ends:
            self._returns += out.rewards.sum(axis=0, dtype=np.float64)
            self._lengths += np.count_nonzero(real, axis=0)
            return
        for n, start in enumerate(first):
            self._returns[n] += out.rewards[start:, n].sum(dtype=np.float64)
            self._lengths[n] += np.count_nonzero(real[start:, n])

    # --- going on from a checkpoint ---------------------------------------------------------------

    def state(self) -> EngineState:
        """Returns what ``load_state`` of another actor needs to go on bit for bit.

        Environments that cannot be replayed begin new episodes, here and there.
        """
        state: EngineState = {"step": np.array(self._progress[STEP])}
        if not isinstance(self._group, SeparateEnvs) or not self._group.can_replay:
            self._cross_border(self._border + 1)
            return {**state, "border": np.array(self._border)}
        logged = np.concatenate(self._log) if self._log else None
        actions = [
            logged[len(logged) - length :, n] if logged is not None and length else None
            for n, length in enumerate(self._lengths.tolist())
        ]
        kept = [part for part in actions if part is not None]
        width, dtype = self._codec.width, self._codec.dtype
        return {
            **state,
            "episodes": np.array(self._group.episodes, dtype=np.int64),
            "observations": self._observations.copy(),
            "starts": self._starts.copy(),
            "core_state": self._state.copy(),
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            "actions": np.concatenate(kept) if kept else np.empty((0, width), dtype=dtype),
        }

    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Goes on from the state of another actor.

        Raises:
            CheckpointError: If the state is not of such an actor.
            RolloutError: If an environment is somewhere else after the same actions.
        """
        self._progress[STEP] = int(state["step"])
        if not isinstance(self._group, SeparateEnvs) or not self._group.can_replay:
            if "border" not in state:
                raise CheckpointError("the state is of environments made one by one")
            self._cross_border(int(state["border"]))
            return
        if "actions" not in state:
            raise CheckpointError("the state is of a vector environment")
        self._restore(self._group, state)

    def _restore(self, group: SeparateEnvs, state: Mapping[str, NDArray[Any]]) -> None:
        lengths = state["lengths"]
        ends = np.cumsum(lengths)
        per_env = [
            state["actions"][end - length : end] for end, length in zip(ends, lengths, strict=True)
        ]
        with self._blame("repeating an episode", RolloutError):
            decoded = [self._decode(actions) for actions in per_env]
            observations = group.replay(state["episodes"].tolist(), decoded)
        for n in range(self._spec.num_envs):
            if not np.array_equal(observations[n], state["observations"][n]):
                raise RolloutError(
                    f"actor {self.streams.actor}, environment {n}: the same seed and the same "
                    f"{lengths[n]} actions lead somewhere else; it cannot be resumed exactly. "
                    "Resume with engine.deterministic = false, or make the environment depend on "
                    "the seed of reset() alone"
                )
        self._observations[...] = observations
        self._starts[...] = state["starts"]
        self._state = state["core_state"].copy()
        self._returns[...] = state["returns"]
        self._lengths[...] = lengths
        self._log = deque()
        if lengths.max(initial=0):
            self._log.append(self._log_of(per_env))

    def _decode(self, actions: NDArray[Any]) -> list[Any]:
        return [split(self._codec.to_env(action[None]))[0] for action in actions]

    def _log_of(self, per_env: list[NDArray[Any]]) -> NDArray[Any]:
        """Lays episodes of unequal length side by side, all ending in the last row."""
        longest = max(len(actions) for actions in per_env)
        log = np.zeros((longest, len(per_env), self._codec.width), dtype=self._codec.dtype)
        for n, actions in enumerate(per_env):
            log[longest - len(actions) :, n] = actions
        return log

    def _remember(self, actions: NDArray[Any]) -> None:
        """Keeps the actions of the episodes that are running, and drops older ones."""
        self._log.append(actions.copy())
        needed, kept = int(self._lengths.max()), sum(len(part) for part in self._log)
        while self._log and kept - len(self._log[0]) >= needed:
            kept -= len(self._log.popleft())

    def _cross_border(self, border: int) -> None:
        self._border = border
        with self._blame("resetting", RolloutError):
            self._group.reset(self._observations, border)
        self._forget()

    # --- the beginning ----------------------------------------------------------------------------

    def _begin(self) -> None:
        N = self._spec.num_envs
        self._pending = np.zeros(N, dtype=np.bool_)
        self._returns = np.zeros(N, dtype=np.float64)
        self._lengths = np.zeros(N, dtype=np.int64)
        self._starts = np.ones(N, dtype=np.bool_)
        self._observations = self._group.empty_observations()
        self._forget()
        with self._blame("resetting", RolloutError):
            self._group.reset(self._observations, 0)
        self._progress[PHASE] = IDLE

    def _forget(self) -> None:
        """Puts everything that belongs to running episodes to the beginning of one."""
        self._pending[...] = False
        self._returns[...] = 0.0
        self._lengths[...] = 0
        self._starts[...] = True
        self._state = np.repeat(self._initial, self._spec.num_envs, axis=0)

    # --- errors -----------------------------------------------------------------------------------

    def _place(self, doing: str, env: int, step: int) -> str:
        return f"actor {self.streams.actor}, environment {env}, step {step}, {doing}: "

    @contextmanager
    def _blame(
        self, doing: str, kind: type[EnvironmentSpecError] | type[RolloutError]
    ) -> Iterator[None]:
        """Adds actor, environment and step to whatever goes wrong."""
        try:
            yield
        except EnvironmentSpecError:
            raise
        except (Exception, SystemExit) as cause:
            place = self._place(doing, max(self._progress[ENV], 0), self._progress[STEP] + 1)
            if isinstance(cause, RlregError):
                raise BadEnvironmentError(f"{place}{cause}") from cause
            raise kind(f"{place}{type(cause).__name__}: {cause}") from cause
