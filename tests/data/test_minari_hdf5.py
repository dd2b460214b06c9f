"""Odd HDF5 files of Minari: read as h5py shows them, or refused with the place."""

import shutil

import h5py
import numpy as np
import pytest

from rlreg.errors import DatasetError
from rlreg.runtime.data import load_dataset
from rlreg.runtime.data.minari import MinariFile

LENGTHS = (5, 1, 300, 5, 40)
NAMES = ("observations", "actions", "rewards", "terminations", "truncations")


def _episode(rng, steps, observations=None):
    flags = np.zeros((2, steps), dtype=bool)
    flags[rng.integers(2), -1] = True
    if observations is None:
        observations = rng.standard_normal((steps + 1, 2))
    return {
        "observations": observations,
        "actions": rng.uniform(-1, 1, (steps, 1)).astype(np.float32),
        "rewards": rng.standard_normal(steps),
        "terminations": flags[0],
        "truncations": flags[1],
    }


@pytest.fixture
def episodes():
    rng = np.random.default_rng(0)
    return [_episode(rng, steps) for steps in LENGTHS]


@pytest.fixture
def path(write_minari, episodes, plain_spaces, root):
    """The HDF5 file of a data set that Minari wrote."""
    return root / write_minari(episodes, *plain_spaces) / "data" / "main_data.hdf5"


def rewrite(path, episodes, **options):
    """Writes the file anew: options of h5py for all arrays, or for those of one name."""
    common = {key: value for key, value in options.items() if key not in NAMES}
    with h5py.File(path, "w") as file:
        for index, episode in enumerate(episodes):
            group = file.create_group(f"episode_{index}")
            for name, values in episode.items():
                chosen = {**common, **options.get(name, {})}
                if "chunks" in chosen:
                    chosen["maxshape"] = (None,) * values.ndim
                group.create_dataset(name, data=values, **chosen)


def _replace(group, name, **how):
    values = group[name][()]
    del group[name]
    return group.create_dataset(name, **how) if how else values


def _other_dtype(file, folder):
    _replace(file["episode_2"], "rewards", data=file["episode_2/rewards"][()].astype(np.float32))


def _other_byte_order(file, folder):
    _replace(file["episode_2"], "rewards", data=file["episode_2/rewards"][()].astype(">f8"))


def _link_within(file, folder):
    values = _replace(file["episode_2"], "rewards")
    file["elsewhere"] = values
    file["episode_2"]["rewards"] = h5py.SoftLink("/elsewhere")


def _link_to_another_file(file, folder):
    # A copy, in which the episode has the same address and other numbers.
    file.flush()
    shutil.copy(file.filename, folder / "other.hdf5")
    with h5py.File(folder / "other.hdf5", "a") as other:
        other["episode_2/rewards"][...] = 7.0
    del file["episode_2"]
    file["episode_2"] = h5py.ExternalLink(str(folder / "other.hdf5"), "/episode_2")


def _external_storage(file, folder):
    raw = folder / "rewards.bin"
    values = _replace(file["episode_2"], "rewards")
    values.tofile(raw)
    file["episode_2"].create_dataset(
        "rewards", values.shape, values.dtype, external=[(str(raw), 0, raw.stat().st_size)]
    )


def _virtual(file, folder):
    values = _replace(file["episode_2"], "rewards")
    file["elsewhere"] = values
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    layout[:] = h5py.VirtualSource(".", "elsewhere", values.shape)
    file["episode_2"].create_virtual_dataset("rewards", layout)


def _virtual_of_another_file(file, folder):
    values = _replace(file["episode_2"], "rewards")
    with h5py.File(folder / "other.hdf5", "w") as other:
        other["elsewhere"] = values
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    layout[:] = h5py.VirtualSource(str(folder / "other.hdf5"), "elsewhere", values.shape)
    file["episode_2"].create_virtual_dataset("rewards", layout)


def _sevens_for_flags(file, folder):
    values = _replace(file["episode_2"], "terminations")
    file["episode_2"]["terminations"] = np.full(values.shape, 7)


def _a_link_to_nowhere(file, folder):
    _replace(file["episode_2"], "rewards")
    file["episode_2"]["rewards"] = h5py.SoftLink("/nowhere")


def _a_link_to_itself(file, folder):
    _replace(file["episode_2"], "rewards")
    file["episode_2"]["rewards"] = h5py.SoftLink("/episode_2/rewards")


def _unwritten_chunks(file, folder):
    node = _replace(
        file["episode_2"], "rewards", shape=(300,), dtype=np.float64, chunks=(50,), fillvalue=3.5
    )
    node[60:70] = 1.0


def _unwritten_array(file, folder):
    _replace(file["episode_2"], "rewards", shape=(300,), dtype=np.float64, fillvalue=3.5)


def _compact(file, folder):
    values = _replace(file["episode_0"], "rewards")
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_layout(h5py.h5d.COMPACT)
    node = h5py.h5d.create(
        file["episode_0"].id, b"rewards", h5py.h5t.NATIVE_DOUBLE,
        h5py.h5s.create_simple(values.shape), plist,
    )  # fmt: skip
    node.write(h5py.h5s.ALL, h5py.h5s.ALL, values)


def _named_type(file, folder):
    file["kind_of_number"] = np.dtype(np.float64)
    for index in range(len(LENGTHS)):
        values = _replace(file[f"episode_{index}"], "rewards")
        file[f"episode_{index}"].create_dataset(
            "rewards", data=values, dtype=file["kind_of_number"]
        )


def _a_group_where_an_array_belongs(file, folder):
    del file["episode_2/rewards"]
    file.create_group("episode_2/rewards")


def _a_missing_array(file, folder):
    del file["episode_2/rewards"]


def _a_missing_episode(file, folder):
    del file["episode_2"]


def _too_short(file, folder):
    _replace(file["episode_2"], "actions", data=np.zeros((7, 1), np.float32))


def _not_finite(file, folder):
    file["episode_2/observations"][17, 1] = np.nan


def _more_than_the_file_can_hold(file, folder):
    _replace(file["episode_2"], "rewards", shape=(10**12,), dtype=np.float64, chunks=(50,))


def _text(file, folder):
    _replace(file["episode_0"], "rewards", data=np.array([b"a"] * 5))


READ = [
    _other_dtype, _other_byte_order, _link_within, _virtual, _unwritten_chunks, _unwritten_array,
    _compact, _named_type,
]  # fmt: skip
REFUSED = {
    _a_group_where_an_array_belongs: "episode 2 .*rewards",
    _a_missing_array: "episode 2 .*rewards",
    _a_missing_episode: "episode 2 ",
    _too_short: "episode 2",
    _not_finite: "episode 2",
    _more_than_the_file_can_hold: "episode 2 .*8,000,000,000,000 bytes",
    _text: "episode 0",
    # A stranger's file would put what is in another one into the data.
    _link_to_another_file: "episode 2 .*episode_2 is a link to another file, which is not read",
    _external_storage: "episode 2 .*rewards is kept in another file, which is not read",
    _virtual_of_another_file: "episode 2 .*rewards is kept in another file, which is not read",
    _sevens_for_flags: "episode 2 .*terminations: expected 0 and 1, got .7.",
    _a_link_to_nowhere: "episode 2 .*no array 'rewards'",
    _a_link_to_itself: "episode 2 .*no array 'rewards'",
}


def name_of(change):
    return change.__name__.strip("_")


@pytest.mark.parametrize("change", READ, ids=name_of)
def test_odd_files_are_read_as_h5py_shows_them(path, episodes, change):
    rewrite(path, episodes)
    with h5py.File(path, "a") as file:
        change(file, path.parent)
    with h5py.File(path, "r") as file:
        groups = [file[f"episode_{index}"] for index in range(len(LENGTHS))]
        rewards, actions = (
            np.concatenate([group[name][()].astype(np.float32).reshape(-1) for group in groups])
            for name in ("rewards", "actions")
        )
    data = load_dataset(path)
    np.testing.assert_array_equal(np.asarray(data.rewards), rewards)
    np.testing.assert_array_equal(np.asarray(data.actions).reshape(-1), actions)


@pytest.mark.parametrize("change", REFUSED, ids=name_of)
def test_broken_files_are_refused_with_the_episode(path, episodes, change):
    rewrite(path, episodes)
    with h5py.File(path, "a") as file:
        change(file, path.parent)
    with pytest.raises(DatasetError, match=REFUSED[change]):
        load_dataset(path)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_file_that_ends_too_soon_is_refused(path, share):
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(DatasetError, match=r"main_data\.hdf5"):
        load_dataset(path)


def test_steps_of_success_are_read_from_the_infos(write_minari, plain_spaces, root):
    rng = np.random.default_rng(3)
    made = {**_episode(rng, 4), "infos": {"success": [False, False, True, True, True]}}
    name = write_minari([made], *plain_spaces)
    episode = next(MinariFile.open(name).episodes(with_success=True))
    assert episode.success.tolist() == [False, True, True, True]
    shutil.rmtree(root / name)
