"""Seeds trained as one computation are the agents that they are by themselves."""

import gc
import json
import math
import zipfile

import numpy as np
import pytest
import torch
from gymnasium import spaces

import rlreg
from rlreg import TransitionDataset
from rlreg.cli.main import run as run_command
from rlreg.errors import RunError
from rlreg.runtime.batch import Batch
from rlreg.runtime.stacking import NotStackedError
from rlreg_iql import update_graph
from rlreg_iql.learner import RULES
from rlreg_iql.stacked import StackedIQL
from rlreg_iql.update_graph import UPDATES_PER_GRAPH

SEEDS = (3, 0, 8)
NUM_UPDATES = 100
TOLERANCE = 1e-5
BOX = spaces.Box(-1, 1, (2,), np.float32)
SMALL = {"type": "vector", "hidden_units": [16, 16]}
DROPPING = {**SMALL, "dropout_rate": 0.3}
SIMBA = {"type": "simba", "feature_size": 8, "hidden_size": 16}
PIXEL = {"type": "pixel", "filters": [[4, 4, 2], [4, 3, 2]], "feature_size": 16}
NAMES = [f"{name}_encoder_factory" for name in ("actor", "critic", "value")]
ACTORS = {
    "normal": {"actor_kind": "normal"},
    "state dependent": {"actor_kind": "normal_state_dependent"},
    "deterministic": {"actor_kind": "deterministic"},
    "categorical": {"action_space": spaces.MultiDiscrete([2, 3], start=[4, 0])},
    "dropout": dict.fromkeys(NAMES, DROPPING),
}
VARIANTS = {
    "five critics with layer norm": {
        "n_critics": 5,
        "critic_encoder_factory": {**SMALL, "use_layer_norm": True},
    },
    "simba": dict.fromkeys(NAMES, SIMBA),
    "clipped and scheduled": {
        "actor_optim_factory": {
            "type": "adam",
            "clip_grad_norm": 0.05,
            "lr_scheduler_factory": {"type": "cosine_annealing"},
        },
        "critic_optim_factory": {"type": "adam_w", "weight_decay": 0.1, "clip_grad_norm": 0.05},
        "value_learning_rate": 1e-3,
    },
    "other optimizers": {
        "actor_optim_factory": {"type": "rmsprop"},
        "critic_optim_factory": {"type": "sgd", "momentum": 0.9},
    },
    "scalers": {
        "observation_scaler": {"type": "standard"},
        "reward_scaler": {"type": "return"},
        "initialization": "orthogonal",
    },
}


def make_data(observation_space=None, action_space=BOX, size=300):
    rng = np.random.default_rng(0)
    space = observation_space or spaces.Box(-np.inf, np.inf, (4,), np.float32)
    space.seed(0)
    action_space.seed(0)
    terminations = rng.random(size) < 0.1
    return TransitionDataset.from_arrays(
        np.stack([space.sample() for _ in range(size)]),
        np.stack([action_space.sample() for _ in range(size)]),
        rng.normal(size=size).astype(np.float32),
        terminations,
        ~terminations,
        next_observations=np.stack([space.sample() for _ in range(size)]),
        observation_space=space,
        action_space=action_space,
    )


def make_members(data, seeds=SEEDS, device="cpu", **settings):
    members = []
    for seed in seeds:
        for name in NAMES:
            settings.setdefault(name, SMALL)
        settings.setdefault("batch_size", 32)
        member = rlreg.create("iql", device=device, seed=seed, compile="off", **settings)
        member.build_with_dataset(data)
        member.set_total_steps(2 * NUM_UPDATES)
        members.append(member)
    return members


def largest_difference(one, two):
    """Largest difference of two learnables' numbers: networks, targets, scalers and moments.

    Absolute, and relative where a number is beyond 1: second moments may be in the thousands.
    """
    worst = 0.0
    for part in ("networks", "optimizers", "scalers"):
        worst = max(worst, _difference(one.state_dict()[part], two.state_dict()[part]))
    return worst


def _difference(one, two):
    if isinstance(one, torch.Tensor):
        scales = two.float().abs().clamp(min=1.0)
        return float(((one.float() - two.float()).abs() / scales).max()) if one.numel() else 0.0
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        return max((_difference(value, two[key]) for key, value in one.items()), default=0.0)
    if isinstance(one, list | tuple):
        return max((_difference(a, b) for a, b in zip(one, two, strict=True)), default=0.0)
    if isinstance(one, float):
        return abs(one - two)
    assert one == two
    return 0.0


def make_double(members):
    """Turns networks, and what they are given, into float64."""
    for member in members:
        for module in member.modules().values():
            module.double()

        def scaled(batch, original=member.scale_batch):
            parts = dict(original(batch))
            pixels = {n: v / 255.0 for n, v in parts.items() if v.dtype == torch.uint8}
            return Batch(**{name: value.double() for name, value in {**parts, **pixels}.items()})

        member.scale_batch = scaled
    return members


def compare(settings, device="cpu", *, is_double=False):
    """Trains seeds alone and together; returns the largest difference."""
    settings = dict(settings)
    own = {key: settings.pop(key) for key in list(settings) if key.endswith("_space")}
    data = make_data(**own)
    alone, together = (make_members(data, device=device, **settings) for _ in range(2))
    if is_double:
        alone, together = make_double(alone), make_double(together)
    resident = data.to(alone[0].device)
    expected = [member.train_epoch(resident, NUM_UPDATES) for member in alone]
    updates = together[0].stacked_with(together[1:], resident)
    totals = [updates.run(resident, NUM_UPDATES // 2) for _ in range(2)]
    for index, metrics in enumerate(expected):
        assert totals[0][index].keys() == metrics.keys()
        for name, value in metrics.items():
            mean = sum(float(part[index][name]) for part in totals) / NUM_UPDATES
            assert mean == pytest.approx(value, rel=1e-4, abs=1e-5), name
    for one, two in zip(alone, together, strict=True):
        assert one.grad_step == two.grad_step == NUM_UPDATES
        for name, stream in one.rng_state().items():
            assert torch.equal(stream, two.rng_state()[name]), name
    assert largest_difference(*together[:2]) > 1e-2  # seeds are not each other
    return max(largest_difference(one, two) for one, two in zip(alone, together, strict=True))


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("actor", ACTORS)
def test_every_seed_is_what_it_becomes_alone(rule, actor):
    assert compare({"update_rule": rule, **ACTORS[actor]}) <= TOLERANCE


@pytest.fixture
def tried_on_cpu(monkeypatch):
    """Lets updates go through the graph's buffers; the function takes the place of the graph."""
    monkeypatch.setattr(StackedIQL, "_is_tried_on_cpu", True)


RECORDED = {
    **{name: ACTORS[name] for name in ("normal", "state dependent", "categorical")},
    **{name: VARIANTS[name] for name in ("simba", "clipped and scheduled", "scalers")},
}


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("name", RECORDED)
def test_updates_of_a_graph_equal_those_of_each_seed(rule, name, tried_on_cpu):
    assert compare({"update_rule": rule, **RECORDED[name]}) <= TOLERANCE


def make_stack(data, **settings):
    members = make_members(data, seeds=(1, 2), **settings)
    return members, members[0].stacked_with(members[1:], data)


def test_every_launch_reads_the_next_batches_of_each_seed(tried_on_cpu):
    data = make_data()
    members, updates = make_stack(data)
    graph, seen = updates._graph, []
    launch = graph.replay

    def watched():
        seen.append([part.clone() for part in graph.batches])
        launch()

    graph.replay = watched
    streams = [torch.Generator() for _ in members]
    for stream, member in zip(streams, members, strict=True):
        stream.set_state(member.generator.get_state())
    updates.run(data, 50)
    assert len(seen) == 50 // UPDATES_PER_GRAPH
    for parts in seen:
        for k in range(UPDATES_PER_GRAPH):
            for index, stream in enumerate(streams):
                expected = Batch(**data.sample(32, stream)).values()
                for part, other in zip(parts, expected, strict=True):
                    assert torch.equal(part[k, index], other)


@pytest.mark.parametrize("name", ["dropout", "other optimizers"])
def test_what_no_graph_can_do_is_launched_one_by_one(name, tried_on_cpu):
    _, updates = make_stack(make_data(), **{**ACTORS, **VARIANTS}[name])
    assert updates._graph is None


def refused(function, device):
    raise RuntimeError("no graph of this\nand more")


def frozen(function, device):
    def replay():
        function.__self__.batches[0].zero_()  # as a graph that reads another memory does
        function()

    return replay


@pytest.mark.parametrize(
    ("record", "reason"),
    [(refused, "no graph of this"), (frozen, "it does not do what")],
    ids=["cannot be recorded", "old observations"],
)
def test_a_graph_that_fails_is_left_out_with_a_warning(record, reason, tried_on_cpu, monkeypatch):
    monkeypatch.setattr(update_graph, "record", record)
    data = make_data()
    alone = make_members(data, seeds=(1, 2))
    with pytest.warns(UserWarning, match=f"10 updates could not be made a graph: {reason}"):
        members, updates = make_stack(data)
    assert updates._graph is None
    updates.run(data, 20)
    for one, two in zip(alone, members, strict=True):
        one.train_epoch(data, 20)
        assert largest_difference(one, two) <= TOLERANCE


@pytest.mark.gpu
def test_on_a_gpu_stacked_updates_are_a_graph():
    data = make_data()
    members = make_members(data, seeds=(1, 2), device="cuda")
    updates = members[0].stacked_with(members[1:], data.to(members[0].device))
    assert isinstance(updates._graph.replay.__self__, torch.cuda.CUDAGraph)


@pytest.mark.parametrize("variant", VARIANTS)
def test_networks_optimizers_and_scalers_of_all_kinds_are_stacked(variant):
    assert compare(VARIANTS[variant]) <= TOLERANCE


def test_image_encoders_are_stacked():
    """In float64: in float32 a pixel that rounds across the kink of a ReLU is seen for 1e-3."""
    settings = {
        "observation_space": spaces.Box(0, 255, (3, 20, 20), np.uint8),
        **dict.fromkeys(NAMES, PIXEL),
    }
    assert compare(settings, is_double=True) <= 1e-10


@pytest.mark.gpu
@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("actor", ["normal", "state dependent", "deterministic", "categorical"])
def test_every_seed_is_what_it_becomes_alone_on_a_gpu(rule, actor):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        assert compare({"update_rule": rule, **ACTORS[actor]}, device="cuda") <= TOLERANCE
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"value_encoder_factory": {**SMALL, "use_batch_norm": True}}, "batch normalisation"),
        ({"critic_encoder_factory": {**SMALL, "use_batch_norm": True}}, "batch normalisation"),
        (
            {
                "observation_space": spaces.Box(0, 255, (3, 20, 20), np.uint8),
                **{name: {**PIXEL, "dropout_rate": 0.1} for name in NAMES},
            },
            "Dropout2d draws noise of its own",
        ),
    ],
    ids=["batch norm of the value", "batch norm of the critics", "dropout of channels"],
)
def test_what_cannot_be_stacked_says_why_and_is_left_as_it_was(settings, reason):
    settings = dict(settings)
    own = {key: settings.pop(key) for key in list(settings) if key.endswith("_space")}
    data = make_data(**own)
    members, untouched = (make_members(data, seeds=(1, 2), **settings) for _ in range(2))
    with pytest.raises(NotStackedError, match=reason):
        members[0].stacked_with(members[1:], data)
    for one, two in zip(members, untouched, strict=True):
        assert largest_difference(one, two) == 0
        assert torch.equal(one.rng_state()["noise"], two.rng_state()["noise"])


def test_members_at_different_updates_are_refused():
    data = make_data()
    members = make_members(data, seeds=(1, 2))
    members[0].train_epoch(data, 3)
    updates = members[0].stacked_with(members[1:], data)
    with pytest.raises(NotStackedError, match="different steps"):
        updates.run(data, 1)


def test_members_with_other_configs_are_refused():
    data = make_data()
    members = make_members(data, seeds=(1,)) + make_members(data, seeds=(2,), gamma=0.5)
    with pytest.raises(NotStackedError, match="configs differ"):
        members[0].stacked_with(members[1:], data)


@pytest.mark.parametrize("place", ["parameter", "batch"])
def test_a_chunk_with_a_number_that_is_not_finite_changes_nobody(place):
    data = make_data()
    settings = {
        "actor_optim_factory": {
            "type": "adam",
            "lr_scheduler_factory": {"type": "warmup", "warmup_steps": 9},
        }
    }
    members, untouched = (make_members(data, seeds=(1, 2), **settings) for _ in range(2))
    updates = members[0].stacked_with(members[1:], data)
    for group in (members, untouched):
        for member in group:
            if place == "parameter" and member.seed == 2:
                with torch.no_grad():
                    next(member.value.parameters())[0, 0] = 1e30
    if place == "batch":
        original = members[0].scale_batch

        def poisoned(batch):
            scaled = original(batch)
            scaled.rewards[40] = math.inf  # of the second member
            return scaled

        members[0].scale_batch = poisoned
    assert updates.run(data, 5) is None
    for one, two in zip(members, untouched, strict=True):
        for optimizer in two.optimizers().values():
            optimizer.prepare()
        assert largest_difference(one, two) == 0
        assert one.grad_step == 0
        assert torch.equal(one.generator.get_state(), two.generator.get_state())
        assert torch.equal(one.rng_state()["noise"], two.rng_state()["noise"])


# --- in run folders -----------------------------------------------------------------------------


@pytest.fixture
def run(dataset):
    return {
        "learnable": {"type": "iql", "batch_size": 16, **dict.fromkeys(NAMES, DROPPING)},
        "dataset": dataset,
        "device": "cpu",
        "train": {"n_steps": 140, "n_steps_per_epoch": 70},
        "evaluation": {"n_episodes": 1, "baselines": [], "every": 70},
    }


def train(run, out, **settings):
    return rlreg.train(run, out=out, show_progress=False, **settings)


def members_of(path):
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def rows_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_stacked_seeds_write_the_folders_of_runs_by_themselves(run, tmp_path):
    result = train(run, tmp_path / "many", seeds=2, arrangement="stacked")
    assert result.status == "finished"
    assert result.summary["num_finished"] == 2
    assert len(result.summary["final"]["mean_return"]["values"]) == 2
    seeds = json.loads((tmp_path / "many" / "seeds.json").read_text())
    assert seeds == {"seeds": [0, 1], "arrangement": "stacked"}
    train({**run, "seed": 1}, tmp_path / "solo")
    stacked, solo = tmp_path / "many" / "seed-1", tmp_path / "solo"
    assert {path.name for path in stacked.iterdir()} == {path.name for path in solo.iterdir()}
    for one, two in zip(rows_of(stacked), rows_of(solo), strict=True):
        assert one.keys() == two.keys()
        for name in one.keys() - {"wall_s", "time/updates_per_s"}:
            assert one[name] == pytest.approx(two[name], rel=1e-3, abs=1e-4), name
    one, two = (rlreg.load(folder / "last.rlreg", device="cpu") for folder in (stacked, solo))
    assert largest_difference(one, two) <= TOLERANCE
    assert json.loads((stacked / "summary.json").read_text())["seed"] == 1


def test_stacked_seeds_collect_garbage(dataset, tmp_path, monkeypatch):
    found, plain = [], StackedIQL.run

    def noted(self, *given):
        found.append(gc.isenabled())
        return plain(self, *given)

    monkeypatch.setattr(StackedIQL, "run", noted)
    command = ["train", "iql", "--dataset", dataset, "--seeds", "2", "--arrange", "stacked"]
    command += ["--steps", "60", "--set", "evaluation.env=null", "--out", str(tmp_path / "many")]
    try:
        assert run_command(command) == 0
    finally:
        gc.unfreeze()
    assert found
    assert all(found)


SLOW = pytest.mark.slow


# In the first epoch; in the evaluation of the first seed after it (200 steps); in that of the
# second, when the first seed has ended its epoch; in the second epoch.
@pytest.mark.parametrize(
    "calls", [0, pytest.param(50, marks=SLOW), 300, pytest.param(403, marks=SLOW)]
)
def test_interrupted_stacked_seeds_end_like_the_undisturbed_ones(run, tmp_path, calls):
    train(run, tmp_path / "whole", seeds=2, arrangement="stacked")
    asked = iter(range(10**6))
    first = train(
        run,
        tmp_path / "r",
        seeds=2,
        arrangement="stacked",
        should_stop=lambda: next(asked) == calls,
    )
    assert first.status == "interrupted"
    assert rlreg.resume(tmp_path / "r", show_progress=False).status == "finished"
    for seed in ("seed-0", "seed-1"):
        whole, resumed = (
            members_of(tmp_path / name / seed / "last.rlreg") for name in ("whole", "r")
        )
        assert whole == resumed
        steps = [[row["step"] for row in rows_of(tmp_path / n / seed)] for n in ("whole", "r")]
        assert steps[0] == steps[1] == [70, 140]


def test_a_seed_that_was_saved_earlier_catches_up(run, tmp_path):
    train(run, tmp_path / "whole", seeds=2, arrangement="stacked")
    asked = iter(range(10**6))
    train(run, tmp_path / "r", seeds=2, arrangement="stacked", should_stop=lambda: next(asked) == 3)
    late = tmp_path / "r" / "seed-1"
    for path in (late / "last.rlreg", late / "metrics.jsonl", *late.glob("checkpoints/*")):
        path.unlink()  # as if the process had been killed before it was saved at all
    assert rlreg.resume(tmp_path / "r", show_progress=False).status == "finished"
    for seed in ("seed-0", "seed-1"):
        one, two = (
            rlreg.load(tmp_path / name / seed / "last.rlreg", device="cpu")
            for name in ("whole", "r")
        )
        assert largest_difference(one, two) <= TOLERANCE


def test_seeds_that_cannot_be_stacked_are_spread_with_a_notice(run, tmp_path, capsys):
    run["learnable"]["value_encoder_factory"] = {**SMALL, "use_batch_norm": True}
    run["train"] = {"n_steps": 20, "n_steps_per_epoch": 20}
    result = rlreg.train(run, out=tmp_path / "r", seeds=2, arrangement="stacked")
    assert result.status == "finished"
    notices = [line for line in capsys.readouterr().err.splitlines() if "not stacked" in line]
    assert len(notices) == 1
    assert "batch normalisation" in notices[0]
    assert json.loads((tmp_path / "r" / "seeds.json").read_text())["arrangement"] == "spread"
    assert (tmp_path / "r" / "seed-1" / "summary.json").is_file()


@pytest.mark.parametrize(("device", "expected"), [("cpu", "spread"), ("cuda:0", "stacked")])
def test_seeds_are_stacked_on_a_gpu_and_spread_on_a_cpu_unless_told_otherwise(
    device, expected, run, monkeypatch
):
    """What a learnable's device says decides; there may be no GPU, so it only says so here."""
    from rlreg.files import load_run
    from rlreg.runtime import seeds

    def make(settled):
        learnable = rlreg.create(settled.learnable, device="cpu")
        learnable.device = torch.device(device)
        return learnable

    monkeypatch.setattr(seeds, "make_learnable", make)
    assert seeds._settle(load_run({**run, "compile": "off"}), "auto", is_shown=False) == expected


def test_a_seed_that_fails_is_named_and_the_others_are_saved(run, tmp_path, monkeypatch):
    from rlreg_iql.learnable import IQL

    original = IQL.scale_batch

    def poisoned(self, batch):
        scaled = original(self, batch)
        if self.grad_step >= 50:
            rows = scaled.rewards
            rows[len(rows) - 1 if len(rows) > 16 else 0 : len(rows)] = (
                math.nan if len(rows) > 16 or self.seed == 1 else 0.0
            )
        return scaled

    monkeypatch.setattr(IQL, "scale_batch", poisoned)
    with pytest.raises(RunError, match=r"seed 1: update 51: .*other seeds are saved"):
        train(run, tmp_path / "r", seeds=2, arrangement="stacked")
    saved = rlreg.load(tmp_path / "r" / "seed-0" / "last.rlreg", device="cpu")
    assert saved.grad_step == 70
    monkeypatch.undo()
