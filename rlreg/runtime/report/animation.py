"""A short animation of a policy, for environments that render pictures.

Only here does a report need something that is not always installed: Pillow, and whatever the
environment draws with. What is missing is said in the report and harms nothing else.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gymnasium.envs.registration import EnvSpec
from gymnasium.error import DependencyNotInstalled

from rlreg.errors import EnvironmentSpecError, MissingExtraError, RlregError
from rlreg.run_config import EnvironmentSettings, RunConfig
from rlreg.runtime.checkpoint import load
from rlreg.runtime.env_answers import reward_of
from rlreg.runtime.environments import Env, EnvLike, env_name, make_env
from rlreg.runtime.report.runs import Group, RunView

MAX_STEPS, MAX_FRAMES, MAX_WIDTH = 600, 100, 240


@dataclass(frozen=True, slots=True)
class Animation:
    """A policy at work, or the reason why it cannot be seen.

    Attributes:
        group: Whose policy it is.
        text: What is seen, or why nothing is.
        moving: Address (``data:``) of the moving picture; empty if there is none.
        still: Address of its first frame, for those who want nothing to move.
        width: Pixels.
        height: Pixels.
    """

    group: str
    text: str
    moving: str = ""
    still: str = ""
    width: int = 0
    height: int = 0


def animate(group: Group) -> Animation:
    """Plays the first evaluation episode of a group's best policy and records it."""
    view = max(group.runs, key=_best)
    try:
        return _animate(group.name, view)
    except RlregError as error:
        return Animation(group.name, f"No animation: {error}")
    except DependencyNotInstalled as error:
        remedy = "pip install 'rlreg[report]' brings what Gymnasium's classic ones draw with"
        return Animation(group.name, f"No animation: {error}; {remedy}")
    except Exception as error:  # noqa: BLE001 - a stranger's renderer raises whatever it likes
        return Animation(group.name, f"No animation: {type(error).__name__}: {error}")


def _best(view: RunView) -> float:
    best = view.summary.get("best")
    return float(best["mean_return"]) if best else float("-inf")


def _animate(name: str, view: RunView) -> Animation:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("it needs Pillow: pip install 'rlreg[report]'") from error
    place = _place(view.run)
    if view.checkpoint is None:
        raise EnvironmentSpecError("the run has no checkpoint yet")
    learnable = load(view.checkpoint, device="cpu")
    with _without_screen(), contextlib.closing(make_env(_rendering(place))) as env:
        frames, total, length = _play(learnable, env, view.run)
        rate = float(env.metadata.get("render_fps") or 30)
    stride = max(1, -(-len(frames) // MAX_FRAMES))
    pictures = [_small(Image.fromarray(frame)) for frame in frames[::stride]]
    text = (
        f"{name}: one episode in {env_name(place)} from seed {view.run.evaluation.seed}, "
        f"{length} steps, return {total:.4g}"
    )
    width, height = pictures[0].size
    moving = _gif(pictures, max(20, round(1000 * stride / rate)))
    return Animation(name, text, moving, _png(pictures[0]), width, height)


@contextlib.contextmanager
def _without_screen() -> Iterator[None]:
    """Keeps SDL, which pygame draws with, from looking for a screen and complaining."""
    name = "SDL_VIDEODRIVER"
    before = os.environ.get(name)
    os.environ[name] = "dummy"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _place(run: RunConfig) -> EnvLike:
    chosen: Any = run.evaluation.env if run.evaluation.env not in (None, "auto") else run.env
    if chosen is None and run.dataset is not None:
        from rlreg.runtime.data.load import load_dataset

        dataset = load_dataset(run.dataset)
        chosen = dataset.info.eval_env_spec or dataset.info.env_spec
        dataset.close()
    if chosen is None:
        raise EnvironmentSpecError("no environment is known for the run")
    found: EnvLike = chosen
    return found


def _rendering(place: EnvLike) -> EnvLike:
    """Asks for pictures, in whichever way the environment is named."""
    if isinstance(place, EnvSpec):
        spec = copy.deepcopy(place)
        spec.kwargs = {**spec.kwargs, "render_mode": "rgb_array"}
        return spec
    settings = EnvironmentSettings(id=place) if isinstance(place, str) else place
    assert isinstance(settings, EnvironmentSettings)
    kwargs = {**settings.kwargs, "render_mode": "rgb_array"}
    return settings.model_copy(update={"kwargs": kwargs})


def _play(learnable: Any, env: Env, run: RunConfig) -> tuple[list[Any], float, int]:
    observation, _ = env.reset(seed=run.evaluation.seed)
    frames, total, length, is_over = [env.render()], 0.0, 0, False
    if not hasattr(frames[0], "shape"):
        raise EnvironmentSpecError(f"{env_name(env)} renders no pictures")
    act = learnable.predict if run.evaluation.deterministic else learnable.sample_action
    learnable.begin_episodes(1)
    while not is_over and length < MAX_STEPS:
        observation, reward, terminated, truncated, _ = env.step(act(observation))
        total, length = total + reward_of(reward, f"animation, step {length + 1}"), length + 1
        is_over = bool(terminated or truncated)
        frames.append(env.render())
    return frames, total, length


def _small(picture: Any) -> Any:
    width, height = picture.size
    scale = min(1.0, MAX_WIDTH / width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return picture.convert("RGB").resize(size)


def _gif(pictures: list[Any], duration_ms: int) -> str:
    buffer = io.BytesIO()
    first, *rest = [picture.quantize(64) for picture in pictures]
    first.save(
        buffer, "GIF", save_all=True, append_images=rest, duration=duration_ms, loop=0,
        optimize=True,
    )  # fmt: skip
    return _address("gif", buffer)


def _png(picture: Any) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", optimize=True)
    return _address("png", buffer)


def _address(kind: str, buffer: io.BytesIO) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
