from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """A Minari root and a cache of this test's own."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setenv("RLREG_CACHE", str(tmp_path / "cache"))
    (tmp_path / "minari").mkdir()
    return tmp_path / "minari"


@pytest.fixture
def write_minari(root):
    """Writes a Minari data set with Minari itself; returns its id."""

    def write(
        episodes,
        observation_space,
        action_space,
        *,
        dataset_id="test/made-v0",
        data_format="hdf5",
        env_spec=None,
        metadata=None,
        jpeg_encoding=True,
    ):
        from minari.data_collector import EpisodeBuffer
        from minari.dataset.minari_storage import MinariStorage

        folder = Path(root) / dataset_id / "data"
        folder.mkdir(parents=True)
        storage = MinariStorage.new(
            folder,
            observation_space=observation_space,
            action_space=action_space,
            env_spec=env_spec,
            data_format=data_format,
            jpeg_encoding=jpeg_encoding,
        )
        storage.update_metadata(
            {"dataset_id": dataset_id, "minari_version": "0.5.4", **(metadata or {})}
        )
        # One call each: Minari's Arrow writer is given nothing it could mix up.
        for episode in episodes:
            storage.update_episodes([EpisodeBuffer(**episode)])
        return dataset_id

    return write


def _recognisable(index, steps, *, terminated=False, observations=None):
    """An episode in which every number says its episode and step."""
    count = steps + 1 if observations is None else observations
    flags = np.zeros((2, steps), dtype=bool)
    flags[0 if terminated else 1, -1] = True
    return {
        "observations": np.array([[index, t] for t in range(count)], dtype=np.float64),
        "actions": np.array([[index * 0.1 + t * 0.01] for t in range(steps)], dtype=np.float32),
        "rewards": np.array([100.0 * index + t for t in range(steps)]),
        "terminations": flags[0],
        "truncations": flags[1],
    }


@pytest.fixture
def recognisable():
    return _recognisable


@pytest.fixture
def plain_spaces():
    """Spaces of the recognisable episodes."""
    return (
        spaces.Box(-np.inf, np.inf, (2,), np.float64),
        spaces.Box(-1.0, 1.0, (1,), np.float32),
    )
