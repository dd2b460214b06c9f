"""The acting loop: every row of every autoreset mode against the truth."""

from __future__ import annotations

import itertools
import warnings

import gymnasium as gym
import numpy as np
import pytest
import rollout_helpers as helpers
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from rlreg.errors import EnvironmentSpecError, RolloutError
from rlreg_impala.acting import Actor
from rlreg_impala.buffers import FragmentBuffers, FragmentLayout
from rlreg_impala.env_group import split
from rlreg_impala.streams import Streams

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")


def run_actor(factory, *, T=5, N=3, fragments=6, spec=None, deterministic=False, streams=None):
    """Fills fragments with one actor and returns copies of them."""
    engine_spec = helpers.small_spec(unroll_length=T, num_envs=N, deterministic=deterministic)
    probe = helpers.CountingEnv() if spec is None else None
    policy_spec = helpers.tiny_spec(probe) if spec is None else spec
    layout = FragmentLayout.of(engine_spec, policy_spec, policy_spec.make())
    # Rubbish that an actor must not leave in place.
    memory = np.full(layout.num_bytes(1), 0x7B, dtype=np.uint8)
    slot = FragmentBuffers.slot(layout.arrays(memory, 1), 0)
    actor = Actor(engine_spec, policy_spec, factory, streams or Streams(helpers.SEED, 0))
    result = []
    for version in range(fragments):
        assert actor.fill(slot, version, version)
        result.append(helpers.copied(slot.fragment(None)))
    actor.close()
    return result


@pytest.mark.parametrize("T", [1, 2, 3, 7])
@pytest.mark.parametrize("mode", helpers.FACTORIES)
def test_every_row_is_true_in_every_mode(mode, T):
    fragments = run_actor(helpers.FACTORIES[mode](3), T=T, fragments=60 // T)
    for env in range(3):
        rows = helpers.transitions(fragments, env)
        assert rows == helpers.truth(len(rows))


@pytest.mark.parametrize("mode", helpers.FACTORIES)
def test_transitions_equal_the_sum_of_episode_lengths(mode):
    # One environment, cut where an episode ends: then no transition is outside an episode.
    fragments = run_actor(helpers.FACTORIES[mode](1), T=1, N=1, fragments=50)
    ends = [i for i, f in enumerate(fragments) if (f["terminations"] | f["truncations"]).any()]
    whole = fragments[: ends[-1] + 1]
    transitions = sum(int((~f["resets"]).sum()) for f in whole)
    lengths = np.concatenate([f["episode_lengths"] for f in whole])
    assert transitions == lengths.sum() == sum(helpers.LENGTHS[i % 6] for i in range(len(lengths)))


@pytest.mark.parametrize("mode", helpers.FACTORIES)
def test_returns_are_those_of_the_episodes(mode):
    fragments = run_actor(helpers.FACTORIES[mode](2), T=4, N=2, fragments=10)
    returns = np.concatenate([f["episode_returns"] for f in fragments])
    expected = [
        sum(100.0 * k + step + 1 for step in range(helpers.LENGTHS[k % 6]))
        for k in range(len(returns) // 2)
    ]
    assert sorted(returns) == sorted(expected * 2)


@pytest.mark.parametrize("mode", helpers.FACTORIES)
def test_fragments_overlap_in_one_row_and_masks_reach_over_the_border(mode):
    fragments = run_actor(helpers.FACTORIES[mode](3), T=3, fragments=20)
    for before, after in itertools.pairwise(fragments):
        np.testing.assert_array_equal(before["observations"][-1], after["observations"][0])
        np.testing.assert_array_equal(before["starts"][-1], after["starts"][0])
        done = before["terminations"][-1] | before["truncations"][-1]
        is_next_step = mode.startswith(("next", "native"))
        np.testing.assert_array_equal(after["resets"][0], done & is_next_step)
    assert any(f["resets"][0].any() for f in fragments) == mode.startswith(("next", "native"))


@pytest.mark.parametrize("mode", helpers.FACTORIES)
def test_state_is_initial_exactly_where_an_episode_starts(mode):
    fragments = run_actor(helpers.FACTORIES[mode](3), T=3, fragments=20)
    for fragment in fragments:
        steps = fragment["observations"][..., 1]
        # The first row after a done is the reset observation: step 0 of an episode.
        np.testing.assert_array_equal(fragment["starts"], steps == 0)
        # The tiny policy's state counts rows, so it is the step within the episode.
        np.testing.assert_array_equal(fragment["core_state"][:, 0], steps[0])


def test_the_same_step_final_observations_are_only_those_of_truncated_rows():
    for mode in ("separate", "same_step", "disabled"):
        fragments = run_actor(helpers.FACTORIES[mode](3), T=7, fragments=8)
        for fragment in fragments:
            rows = [tuple(row) for row in fragment["final_rows"].tolist()]
            assert rows == [tuple(row) for row in np.argwhere(fragment["truncations"]).tolist()]
            assert not (fragment["terminations"] & fragment["truncations"]).any()


def test_an_end_that_is_neither_counts_as_truncation_and_warns_once():
    def make():
        return helpers.CountingEnv(lengths=(3,), endings=("neither",))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fragments = run_actor(make, T=5, fragments=6)
    assert len(caught) == 1
    assert "both false" in str(caught[0].message)
    rows = helpers.transitions(fragments, 0)
    assert rows == helpers.truth(len(rows), lengths=(3,), endings=("neither",))


def test_one_version_for_a_whole_fragment():
    fragments = run_actor(helpers.CountingEnv, fragments=4)
    assert [f["version"] for f in fragments] == [0, 1, 2, 3]
    assert [f["sequence"] for f in fragments] == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", ["separate", "next_step"])
def test_all_environments_of_all_actors_differ_and_repeat(mode):
    def first_rows(actor, life=0):
        factory = helpers.FACTORIES[mode](4)
        streams = Streams(helpers.SEED, actor, life)
        return run_actor(factory, N=4, fragments=2, streams=streams)

    runs = [first_rows(0), first_rows(1), first_rows(0, life=1)]
    own = np.concatenate([run[0]["observations"][0, :, 2] for run in runs])
    assert len(set(own.tolist())) == 12
    for one, other in zip(runs[0], first_rows(0), strict=True):
        helpers.assert_same(one, other)
    assert not np.array_equal(runs[0][0]["actions"], runs[1][0]["actions"])


# ------------------------------------------------------------------------------- structured spaces

DICT_SPACE = spaces.Dict(
    {"where": spaces.Discrete(3), "what": spaces.Box(0, 1e6, (2,), np.float32)}
)


class DictEnv(helpers.CountingEnv):
    observation_space = DICT_SPACE

    def _observation(self):
        what = np.array([self.episode, self.now], dtype=np.float32)
        return {"where": self.now % 3, "what": what}


class GridEnv(helpers.CountingEnv):
    observation_space = spaces.Box(0, 255, (6, 6), np.uint8)

    def _observation(self):
        return np.full((6, 6), self.now, dtype=np.uint8)


@pytest.mark.parametrize("mode", [None, *AutoresetMode])
def test_dict_observations_are_flattened_with_their_finals(mode):
    factory = DictEnv if mode is None else helpers.sync(mode, 2, DictEnv)
    spec = helpers.TinySpec(DICT_SPACE, spaces.Discrete(2), 5)
    fragments = run_actor(factory, N=2, fragments=8, spec=spec)
    for fragment in fragments:
        what, where = fragment["observations"][..., :2], fragment["observations"][..., 2:]
        np.testing.assert_array_equal(where.argmax(axis=-1), what[..., 1] % 3)
        for (t, n), final in zip(
            fragment["final_rows"], fragment["final_observations"], strict=True
        ):
            assert final[1] == fragment["observations"][t, n, 1] + 1


def test_images_stay_bytes_with_the_axis_of_the_plan():
    spec = helpers.TinySpec(GridEnv.observation_space, spaces.Discrete(2), 36)
    fragments = run_actor(GridEnv, fragments=4, spec=spec)
    assert fragments[0]["observations"].shape == (6, 3, 1, 6, 6)
    assert fragments[0]["observations"].dtype == np.uint8
    assert fragments[0]["observations"][1].max() == 1


class ClippingEnv(helpers.CountingEnv):
    """Changes its action in place, as some environments do."""

    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def step(self, action):
        action *= 0
        return super().step(action)


def test_environments_cannot_change_the_recorded_action():
    spec = helpers.TinySpec(helpers.COUNTING_SPACE, ClippingEnv.action_space, 3)
    fragments = run_actor(ClippingEnv, fragments=4, spec=spec)
    assert sum(np.abs(f["actions"]).sum() for f in fragments) > 0
    batch = np.ones((2, 1), dtype=np.float32)
    for action in split({"arm": batch}):
        action["arm"] *= 0
    assert batch.all()


class ChokingPolicy(helpers.TinyPolicy):
    def act(self, observations, state, rng):
        if not np.isfinite(observations).all():
            raise ArithmeticError("cannot draw from NaN")
        return super().act(observations, state, rng)


def test_nan_is_blamed_on_the_environment_even_where_the_policy_chokes():
    class Spec(helpers.TinySpec):
        def make(self):
            return ChokingPolicy(3, 2)

    spec = Spec(helpers.COUNTING_SPACE, spaces.Discrete(2), 3)
    with pytest.raises(RolloutError, match="step 7, acting: the observation is not finite"):
        run_actor(trouble((NAN, 0.0, False, False, {})), fragments=4, spec=spec)


# -------------------------------------------------------------------------------------- bad input


def trouble(result, at=7):
    return lambda: helpers.TroubleEnv(lambda: result, at=at)


GOOD = np.zeros(3, dtype=np.float32)
NAN = np.array([0, np.nan, 0], dtype=np.float32)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ((GOOD, float("nan"), False, False, {}), "reward nan is not finite"),
        ((GOOD, float("inf"), False, False, {}), "reward inf is not finite"),
        ((GOOD, None, False, False, {}), "reward nan"),
        ((GOOD, np.zeros(3), False, False, {}), "reward"),
        ((NAN, 0.0, False, False, {}), "observation is not finite"),
        ((np.full(3, 1e300), 0.0, False, False, {}), "observation is not finite"),
        ((np.zeros(4, np.float32), 0.0, False, False, {}), "(4,)"),
        ((np.zeros((1,), np.float32), 0.0, False, False, {}), "(1,)"),
        ((None, 0.0, False, False, {}), "observation"),
        ((GOOD, 0.0, False, {}), "unpack"),
    ],
)
def test_unusable_results_name_actor_environment_and_step(result, message):
    made = []

    def make():
        # Only the second environment is at fault.
        made.append(trouble(result)() if len(made) == 1 else helpers.CountingEnv())
        return made[-1]

    with pytest.raises(RolloutError, match=r"actor 4, environment 1, step 7\b") as error:
        run_actor(make, fragments=4, streams=Streams(helpers.SEED, 4))
    assert message in str(error.value)


def test_an_exception_keeps_its_cause():
    with pytest.raises(RolloutError, match="environment 0, step 7, acting: ValueError") as error:
        run_actor(lambda: helpers.TroubleEnv(helpers.raise_value_error, at=7), fragments=4)
    assert isinstance(error.value.__cause__, ValueError)


def test_nan_in_a_vector_environment_names_the_environment():
    def make():
        class Bad(helpers.NativeCounting):
            def step(self, actions):
                observations, *rest = super().step(actions)
                if observations[2, 0] == 2:
                    observations[2, 1] = np.nan
                return observations, *rest

        return Bad(3)

    with pytest.raises(RolloutError, match=r"environment 2, step \d+, acting: the observation"):
        run_actor(make, fragments=4)


def test_a_vector_environment_of_another_size_is_refused():
    with pytest.raises(EnvironmentSpecError, match=r"set engine\.num_envs to 4"):
        run_actor(helpers.sync(AutoresetMode.NEXT_STEP, 4), N=3)


def test_an_environment_of_another_shape_is_refused():
    with pytest.raises(EnvironmentSpecError, match="observation"):
        run_actor(GridEnv)


def test_a_factory_of_something_else_is_refused():
    with pytest.raises(EnvironmentSpecError, match="gave int"):
        run_actor(lambda: 3)


def test_an_unknown_id_is_refused():
    with pytest.raises(EnvironmentSpecError, match="CartPole"):
        run_actor("CartPol-v1")


def test_ids_are_made_by_gymnasium():
    spec = helpers.tiny_spec(gym.make("CartPole-v1"))
    fragments = run_actor("CartPole-v1", T=50, spec=spec, fragments=3)
    lengths = np.concatenate([f["episode_lengths"] for f in fragments])
    returns = np.concatenate([f["episode_returns"] for f in fragments])
    assert len(lengths) > 3
    np.testing.assert_array_equal(lengths, returns)
