import pickle
import re

import pytest

import rlreg
from rlreg import RolloutEngineFactory, RunConfig
from rlreg.config import RUN_WORDS
from rlreg.errors import ConfigError
from rlreg.open_union import validate
from rlreg_impala.components import COMPONENTS
from rlreg_impala.config import IMPALAConfig, engine_or_default
from rlreg_impala.presets import PRESETS
from rlreg_impala.rollouts import EngineSpec


def test_the_plugin_is_ok_and_registers_everything():
    (plugin,) = [p for p in rlreg.list_plugins() if p.distribution == "rlreg-impala"]
    assert plugin.status == "ok", plugin.traceback
    names = {c.name for c in rlreg.list_components()}
    assert {"impala_resnet", "minatar_conv", "rmsprop_tf", "sequential", "process", "ray"} <= names
    assert {p.preset.id for p in rlreg.list_presets()} >= {
        f"impala/{name}"
        for name in (
            "small", "throughput", "atari", "paper", "maze", "minatar", "continuous",
            "long_episodes", "atari_small",
        )
    }  # fmt: skip


def test_importing_the_config_imports_no_torch():
    import subprocess
    import sys

    code = (
        "import sys, rlreg; rlreg.make_config('impala'); rlreg.json_schema('impala');"
        "rlreg.list_presets(); assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("cls", [IMPALAConfig, *COMPONENTS])
def test_every_field_says_where_its_default_comes_from(cls):
    for name, info in cls.model_fields.items():
        if name not in ("type", "schema_version"):
            assert re.search(r"Default: [^.]+.*\.$", info.description or ""), f"{cls}.{name}"


def resolved(preset):
    document = {"learnable": {"type": "impala"}, "env": "CartPole-v1"}
    for path, value in preset.settings.items():
        at, *rest = path.split(".")
        node = document
        for key in rest:
            node = node.setdefault(at, {})
            at = key
        node[at] = value
    return validate(RunConfig, document)


@pytest.mark.parametrize("preset", PRESETS, ids=lambda p: p.id)
def test_presets_are_valid_runs(preset):
    run = resolved(preset)
    assert run.learnable.type == "impala"
    assert preset.source
    assert preset.summary


def test_the_preset_small_equals_the_defaults():
    (small,) = [p for p in PRESETS if p.id == "impala/small"]
    assert resolved(small).learnable == rlreg.make_config("impala")


def test_the_paper_moves_as_a_set():
    (paper,) = [p for p in PRESETS if p.id == "impala/paper"]
    chosen = resolved(paper).learnable
    assert chosen.reduction == "sum"
    assert chosen.max_grad_norm == 40
    assert chosen.optim_factory.type == "rmsprop_tf"
    assert chosen.reward_clipping == "abs_one"
    assert (chosen.n_rollout_steps, chosen.actors_batch_size) == (20, 32)


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("n_epochs", "train.n_epochs"),
        ("patience", "train.patience"),
        ("deterministic_eval", "evaluation.deterministic"),
        ("eval_repeats", "evaluation.n_episodes"),
        ("num_actors", "engine.num_actors"),
        ("queue_out_of_sync_factor", "engine.queue_out_of_sync_factor"),
    ],
)
def test_a_maze_name_in_the_wrong_place_is_told_where_it_belongs(key, place):
    assert key not in IMPALAConfig.model_fields
    with pytest.raises(ConfigError, match=re.escape(place)):
        rlreg.make_config("impala", **{key: 2})


def test_a_name_of_the_learnable_in_the_run_is_told_where_it_belongs():
    run = {"learnable": {"type": "impala"}, "train": {"lr": 1e-3}, "engine": {"type": "process"}}
    with pytest.raises(ConfigError, match=r"learnable\.lr"):
        validate(RunConfig, run)
    run = {"learnable": {"type": "impala"}, "engine": {"type": "process", "n_rollout_steps": 5}}
    with pytest.raises(ConfigError, match=r"learnable\.n_rollout_steps"):
        validate(RunConfig, run)


def test_no_field_is_a_word_of_the_run():
    assert not RUN_WORDS & IMPALAConfig.model_fields.keys()
    assert not set(IMPALAConfig.elsewhere) & IMPALAConfig.model_fields.keys()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n_rollout_steps", 0),
        ("actors_batch_size", 0),
        ("gamma", 1.01),
        ("lr", 0),
        ("max_grad_norm", -1),
        ("vtrace_clip_rho_threshold", -0.5),
        ("reward_clipping", "None"),
        ("reduction", "max"),
        ("core", "rnn"),
        ("entropy_coef", float("nan")),
    ],
)
def test_values_out_of_range_are_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=field):
        rlreg.make_config("impala", **{field: value})


@pytest.mark.parametrize("factor", [0.01, 0.3, 1, 2.5])
@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("kind", ["process", "ray"])
def test_the_queue_is_never_empty_and_never_unbounded(kind, batch, factor):
    engine = validate(RolloutEngineFactory, {"type": kind, "queue_out_of_sync_factor": factor})
    spec = EngineSpec.of(engine, unroll_length=16, batch_size=batch)
    assert batch + 1 <= spec.num_slots <= batch + max(1, round(batch * factor + 1))


@pytest.mark.parametrize("factor", [0, -1, 0.001, float("inf")])
def test_a_factor_that_gives_no_queue_is_refused(factor):
    with pytest.raises(ConfigError, match="queue_out_of_sync_factor"):
        validate(RolloutEngineFactory, {"type": "process", "queue_out_of_sync_factor": factor})


def test_two_learning_rate_schedules_are_refused():
    config = rlreg.make_config(
        "impala", optim_factory={"type": "adam", "lr_scheduler_factory": {"type": "linear"}}
    )
    env = __import__("gymnasium").make("CartPole-v1")
    with pytest.raises(ConfigError, match="two learning-rate schedules"):
        rlreg.create(config, device="cpu").build_with_env(env)
    env.close()


def test_configs_survive_pickling_and_files():
    config = rlreg.make_config("impala", core="lstm", actor_encoder_factory={"type": "pixel"})
    assert pickle.loads(pickle.dumps(config)) == config
    assert validate(type(config), config.model_dump(mode="json")) == config


def test_the_default_engine_is_installed():
    assert engine_or_default(None).type in ("process", "sequential")


def test_an_engine_in_the_wrong_place_is_told_the_right_one():
    with pytest.raises(
        ConfigError, match=r"engine: .* belongs to its top level, beside `learnable`"
    ):
        rlreg.make_config("impala", engine={"type": "process"})
