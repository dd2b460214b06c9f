"""Vector environments in any of gymnasium's three autoreset modes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from .env_group import BadEnvironmentError, EnvGroup, Row, pick
from .streams import Streams


class VectorEnvs(EnvGroup):
    """A vector environment in NEXT_STEP, SAME_STEP or DISABLED autoreset mode."""

    def __init__(self, env: VectorEnv[Any, Any, Any], streams: Streams) -> None:
        super().__init__(env.single_observation_space, env.num_envs, streams)
        self._env = env
        # Gymnasium's own wrappers take an environment without the tag for NEXT_STEP.
        mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        self._mode = mode if isinstance(mode, AutoresetMode) else AutoresetMode(mode)
        self.resets_on_next_step = self._mode is AutoresetMode.NEXT_STEP

    def reset(self, out: NDArray[Any], border: int) -> None:
        """Begins a new episode everywhere."""
        seeds = [self.streams.env_seed(i, border) for i in range(self.num_envs)]
        # Native vector environments have one generator and take one number.
        separate = isinstance(self._env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        given: Any = seeds if separate else seeds[0]
        observations, _ = self._env.reset(seed=given)
        self._write(observations, out)

    def step(self, actions: Any, row: Row) -> bool:
        """Steps all environments with one call."""
        observations, rewards, terminated, truncated, infos = self._env.step(actions)
        if np.shape(rewards) != (self.num_envs,):
            raise BadEnvironmentError(f"rewards of shape {np.shape(rewards)}, expected [N]")
        row.rewards[...] = rewards
        row.terminations[...] = terminated
        row.truncations[...] = truncated
        if infos:
            self._flag_inconsistent(infos, row)
        done = row.terminations | row.truncations
        if not done.any():
            self._write(observations, row.observations)
            return False
        row.truncations &= ~row.terminations
        if self._mode is AutoresetMode.SAME_STEP:
            self._keep_finals(infos, row)
        elif self._mode is AutoresetMode.DISABLED:
            for i in np.flatnonzero(row.truncations).tolist():
                row.finals.append((i, self._flat_one(pick(observations, i))))
            observations, _ = self._env.reset(options={"reset_mask": done})
        self._write(observations, row.observations)
        return True

    def close(self) -> None:
        """Closes the vector environment."""
        self._env.close()

    def _flag_inconsistent(self, infos: Mapping[str, Any], row: Row) -> None:
        for key in ("done", "_final_obs", "_final_observation"):
            if key in infos:
                claimed = np.asarray(infos[key], dtype=bool) & ~row.terminations & ~row.truncations
                if claimed.any():
                    self.warn_inconsistent(int(np.argmax(claimed)))
                    row.truncations |= claimed

    def _keep_finals(self, infos: Mapping[str, Any], row: Row) -> None:
        truncated = np.flatnonzero(row.truncations).tolist()
        finals = infos.get("final_obs", infos.get("final_observation"))
        for i in truncated:
            final = None if finals is None else pick(finals, i)
            if final is None:
                raise BadEnvironmentError(
                    f"environment {i} was truncated in SAME_STEP mode without its last observation "
                    "in infos['final_obs']"
                )
            row.finals.append((i, self._flat_one(final)))

    def _write(self, observations: Any, out: NDArray[Any]) -> None:
        if self._is_plain:
            self._write_plain(observations, out, (self.num_envs, *self._shape))
        else:
            out[...] = self._plan.flatten(observations)
