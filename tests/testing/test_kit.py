"""The conformance kit: good plugins pass every check, and every check can fail."""

from __future__ import annotations

import json
import multiprocessing
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import pytest

import rlreg
from rlreg import registry
from rlreg.errors import ConfigError, UnknownNameError
from rlreg.manifest import FORMAT
from rlreg.scaffold import Project, render
from rlreg.testing import conformance_tests, find_subjects, list_checks, run_check, run_checks
from rlreg.testing.kit import Subject

EXAMPLE = Path(__file__).parents[2] / "examples" / "rlreg-bc"

METADATA = """\
Metadata-Version: 2.1
Name: rlreg-faulty
Version: 0.1.0
Summary: Faulty for rlreg
Requires-Dist: rlreg[torch]<0.2,>=0.1

# rlreg-faulty
"""


def project_files(**options) -> dict[str, str]:
    """The modules of an untouched scaffold called `faulty`."""
    rendered = render(Project("faulty", **options))
    return {
        name.removeprefix("src/"): text
        for name, text in rendered.items()
        if name.startswith("src/")
    }


# --- faults -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """An edit of the scaffold that breaks one promise."""

    check: str
    message: str
    file: str
    old: str
    new: str
    options: dict[str, str] = field(default_factory=dict)
    metadata: str = METADATA
    more: tuple[tuple[str, str], ...] = ()

    def apply(self) -> dict[str, str]:
        files = project_files(**self.options)
        name = f"rlreg_faulty/{self.file}"
        if self.old:
            assert self.old in files[name], f"{self.old!r} is not in {name}"
        text = files.get(name, "")
        files[name] = text.replace(self.old, self.new) if self.old else self.new + text
        for old, new in self.more:
            assert old in files[name], f"{old!r} is not in {name}"
            files[name] = files[name].replace(old, new)
        return files


ONLINE = {"regime": "online"}
UPDATE = "        self.optimizer.zero_grad()\n"
BATCH_SIZE = (
    "Field(\n        256, ge=1, le=1_000_000, "
    'description="Transitions in a minibatch. Default: ours, 256."\n    )'
)
RATE = 'Field(3e-4, gt=0, le=10, description="Step size. Default: ours, 3e-4.")'
CREATE = '    def create(self, device: DeviceLike = "auto") -> Any:\n'
ACT = "        return torch.as_tensor(self.policy(observations))\n"
BUILD = "        config: Any = self.config\n        encoder = "
METHOD = "    def act("
IMPORTED = ("from typing", "import copy\nfrom typing")
COPIED = (
    "        self.optimizer = config",
    "        self.target = copy.deepcopy(self.policy)\n        self.optimizer = config",
)
FUTURE = "from __future__ import annotations\n"
DROPPED = (
    "    def model_dump(self, **options):\n"
    "        dumped = super().model_dump(**options)\n"
    "        dumped.pop('batch_size')\n"
    "        return dumped\n\n"
)
STALE = {"format": FORMAT, "plugin_api": 1, "version": "0.0.9", "entry_points": {}, "sources": {}}
SILENT = {
    "format": FORMAT,
    "plugin_api": 1,
    "version": "0.1.0",
    "sources": {},
    "entry_points": {
        "faulty": {"value": "rlreg_faulty.plugin", "learnables": [], "components": []}
    },
}
PRESET = (
    "\n\n@rlreg.hookimpl\ndef rlreg_presets():\n"
    "    return [rlreg.Preset('faulty/x', 'Some.', 'ours', {'learnable.batch_size': 0})]\n"
)

FAULTS = [
    Fault(
        "hooks-are-found", "No module named 'no_such_module'",
        "plugin.py", FUTURE, FUTURE + "import no_such_module\n",
    ),
    Fault(
        "hooks-are-found", "its hooks return nothing",
        "plugin.py", "return [FaultyConfig]", "return []",
    ),
    Fault(
        "importing-it-is-light", "it imports numpy",
        "config.py", FUTURE, FUTURE + "import numpy\n",
    ),
    Fault(
        "importing-it-prints-nothing", "it prints 'hello'",
        "config.py", FUTURE, FUTURE + "print('hello')\n",
    ),
    Fault(
        "nothing-is-registered-by-call", "while it was imported",
        "config.py", "class FaultyConfig", "@rlreg.register_learnable\nclass FaultyConfig",
    ),
    Fault(
        "nothing-is-registered-by-call", "local/late",
        "config.py", CREATE, CREATE + (
            "        class Late(rlreg.EncoderFactory):\n"
            "            'Late.'\n"
            "            type: Literal['late'] = 'late'\n"
            "        Late.__annotations__['type'] = Literal['late']\n"
            "        Late.model_rebuild(force=True)\n"
            "        rlreg.register_component(Late)\n"
        ),
    ),
    Fault(
        "it-stands-alone", "it imports rlreg-iql, which its metadata does not require",
        "config.py", FUTURE, FUTURE + "import rlreg_iql\n",
    ),
    Fault("names-are-its-own", "'iql' is also in rlreg-iql", "config.py", '"faulty"', '"iql"'),
    Fault(
        "presets-are-valid", "learnable.batch_size = 0: must be >= 1",
        "plugin.py", "    return [FaultyConfig]\n", "    return [FaultyConfig]\n" + PRESET,
    ),
    Fault(
        "presets-are-valid", "names no source",
        "plugin.py", "    return [FaultyConfig]\n",
        "    return [FaultyConfig]\n" + PRESET.replace("'ours'", "''"),
    ),
    Fault(
        "metadata-is-complete", "it does not require rlreg", "plugin.py", "", "",
        metadata=METADATA.replace("Requires-Dist", "X-Dist"),
    ),
    Fault(
        "metadata-is-complete", "does not state: summary, readme", "plugin.py", "", "",
        metadata=METADATA.partition("Summary")[0],
    ),
    Fault(
        "manifest-is-fresh", "made for version 0.0.9, 0.1.0 is installed",
        "rlreg-manifest.json", "", json.dumps(STALE),
    ),
    Fault("manifest-is-fresh", "it cannot be read", "rlreg-manifest.json", "", "[]"),
    Fault(
        "manifest-is-fresh", "manifest and hooks differ in learnable faulty",
        "rlreg-manifest.json", "", json.dumps(SILENT),
    ),
    Fault(
        "summary-is-one-sentence", "should begin with one sentence",
        "config.py", "until you write more.", "until you write more",
    ),
    Fault(
        "fields-are-described", "batch_size",
        "config.py", BATCH_SIZE, "Field(256, ge=1, le=9)".replace("9", "1_000"),
    ),
    Fault("defaults-have-a-source", "learning_rate", "config.py", " Default: ours, 3e-4.", ""),
    Fault("numbers-have-a-range", "learning_rate", "config.py", "gt=0, le=10, ", "gt=0, "),
    Fault(
        "schema-is-strict-json", "not JSON compliant",
        "config.py", "gt=0, le=10,", "gt=0, le=10, json_schema_extra={'x': float('nan')},",
    ),
    Fault(
        "schema-is-strict-json", "no valid JSON Schema",
        "config.py", "gt=0, le=10,", "gt=0, le=10, json_schema_extra={'type': 'float'},",
    ),
    Fault(
        "defaults-are-fixed-and-valid", "a default is not a constant",
        "config.py", BATCH_SIZE,
        "Field(default_factory=__import__('itertools').count(1).__next__, ge=1, le=10**6)",
    ),
    Fault(
        "schema-and-validator-agree", "the schema accepts and the class refuses",
        "config.py", "gt=0, le=10,", "gt=0, le=10, json_schema_extra={'maximum': 20},",
    ),
    Fault(
        "round-trip-through-json", "batch_size = ", "config.py", CREATE, DROPPED + CREATE,
    ),
    Fault(
        "round-trip-through-yaml", "batch_size = ", "config.py", CREATE, DROPPED + CREATE,
    ),
    Fault(
        "bad-config-is-a-named-error", "raised ZeroDivisionError",
        "config.py", CREATE,
        "    def model_post_init(self, context):\n        1 / (self.batch_size - 1)\n\n" + CREATE,
    ),
    Fault(
        "searches-name-what-there-is", "unknown optimizer 'adm'; did you mean 'adam'",
        "config.py", "    optim_factory: rlreg.OptimizerFactory =",
        "    optim_factory: __import__('typing').Annotated[\n"
        "        rlreg.OptimizerFactory, rlreg.Search(choices=('adm',))] =",
    ),
    Fault(
        "migrations-are-complete", "no migration starts from 1",
        "config.py", "schema_version: Literal[1] = 1",
        "schema_version: Literal[3] = 3\n"
        "    migrations: ClassVar = (__import__('rlreg.migrations').migrations.Migration(2, ()),)",
    ),
    Fault(
        "create-keeps-the-promise-of-its-kind", "features [2, 257], not [2, 256]",
        "encoder.py", "self.output_size)", "self.output_size + 1)", {"component": "encoder"},
    ),
    Fault(
        "create-keeps-the-promise-of-its-kind", "three steps change no parameter",
        "components.py", "lr=lr", "lr=0.0", {"component": "optimizer"},
    ),
    Fault(
        "create-keeps-the-promise-of-its-kind", "without state_dict()",
        "schedule.py", "def state_dict", "def state", {"component": "lr_scheduler"},
    ),
    Fault(
        "create-keeps-the-promise-of-its-kind", "inverse() does not undo",
        "scaler.py", "values * self.divisor", "values + 1", {"component": "reward_scaler"},
    ),
    Fault(
        "create-keeps-the-promise-of-its-kind", "without end()",
        "logger.py", "def end", "def finish", {"component": "logger"},
    ),
    Fault(
        "create-makes-no-weights", "create() makes policy",
        "learnable.py", "    def build_networks",
        "    def __init__(self, config, device):\n        super().__init__(config, device)\n"
        "        self.policy = nn.Linear(1, 1)\n\n    def build_networks",
    ),
    Fault(
        "every-form-of-device-is-taken", "it raised AttributeError",
        "config.py", "        from .learnable", "        device.lower()\n        from .learnable",
    ),
    Fault(
        "unbuilt-is-a-named-error", "predict before build raised AttributeError",
        "learnable.py", METHOD,
        "    def predict(self, observations):\n"
        "        return self.policy(observations)\n\n" + METHOD,
    ),
    Fault(
        "other-spaces-are-refused", "building again, for other spaces passes",
        "learnable.py", METHOD, "    def check_spaces(self, *spaces):\n        pass\n\n" + METHOD,
    ),
    Fault(
        "other-spaces-are-refused", "it can be built for actions Discrete(3)",
        "learnable.py", METHOD,
        "    def _check_action_space(self, spaces):\n        pass\n\n" + METHOD,
    ),
    Fault(
        "same-seed-same-result", "built with one seed, two learnables differ in networks/policy",
        "learnable.py", "        self.optimizer = config",
        "        import random\n"
        "        head.bias.data.fill_(random.SystemRandom().random())\n"
        "        self.optimizer = config",
    ),
    Fault(
        "another-seed-another-start", "seeds 1 and 2 give equal networks",
        "learnable.py", BUILD, "        torch.manual_seed(0)\n" + BUILD,
    ),
    Fault(
        "global-generators-stay-untouched", "the global generator of numpy;",
        "learnable.py", UPDATE, UPDATE + "        import numpy\n        numpy.random.rand()\n",
    ),
    Fault(
        "global-generators-stay-untouched", "the global generator of numpy, random",
        "learnable.py", UPDATE,
        UPDATE + "        import numpy, random\n        numpy.random.rand(), random.random()\n",
    ),
    Fault(
        "every-optimised-parameter-moves", "updates leave policy.0",
        "learnable.py", "self.policy(batch.observations)",
        "self.policy[1:](self.policy[0](batch.observations).detach())",
    ),
    Fault(
        "every-network-is-saved", "trains 2 parameters that no checkpoint keeps",
        "learnable.py", "config.optim_factory.create(\n            self.policy.named_modules(),",
        "config.optim_factory.create(\n"
        "            [('', self.policy), ('', nn.Linear(1, 1))],",
    ),
    Fault(
        "actions-lie-in-the-space", "float64",
        "learnable.py", METHOD,
        "    def predict(self, observations):\n"
        "        return super().predict(observations).astype('float64')\n\n" + METHOD,
    ),
    Fault(
        "one-observation-or-many", "alone an observation gives",
        "learnable.py", ACT, ACT.replace("observations)", "observations - observations.mean(0))"),
    ),
    Fault(
        "predicting-changes-nothing", "predict changes counters",
        "learnable.py", ACT, "        self.grad_step += 1\n" + ACT,
    ),
    *(
        Fault(
            check, "training goes another way",
            "learnable.py", UPDATE,
            "        self.count = getattr(self, 'count', 0) + 1\n"
            "        loss = loss * self.count\n" + UPDATE,
        )
        for check in ("state-dict-restores-everything", "checkpoint-restores-everything")
    ),
    Fault(
        "checkpoints-are-reproducible", "two checkpoints of one learnable differ",
        "learnable.py", METHOD,
        "    def extra_state(self):\n        import time\n        return {'t': time.time_ns()}\n\n"
        "    def load_extra_state(self, state):\n        pass\n\n" + METHOD,
    ),
    Fault(
        "fresh-process-predicts-the-same", "in a fresh process",
        "learnable.py", ACT,
        "        import os\n"
        "        return torch.tanh(self.policy(observations) + (os.getpid() % 997) * 1e-4)\n",
    ),
    Fault(
        "update-changes-the-networks", "an update changes no network",
        "learnable.py", "        self.optimizer.step()\n", "",
    ),
    Fault(
        "losses-are-finite-numbers", "update returns no losses",
        "learnable.py", 'return {"loss": loss.detach()}', "return {}",
    ),
    Fault(
        "losses-are-finite-numbers", "expected a finite number",
        "learnable.py", 'return {"loss": loss.detach()}', 'return {"loss": float("nan")}',
    ),
    Fault(
        "terminated-next-state-has-no-influence", "after a termination changes networks",
        "learnable.py", UPDATE,
        "        loss = loss + self.policy(batch.next_observations).square().mean()\n" + UPDATE,
    ),
    Fault(
        "bad-batches-are-named-errors", "NaN passes",
        "learnable.py", METHOD,
        "    def prepare_batch(self, raw):\n"
        "        rewards = torch.as_tensor(raw.get('rewards', 0.0))\n"
        "        raw = {**raw, 'rewards': torch.nan_to_num(rewards)} if 'rewards' in raw else raw\n"
        "        return super().prepare_batch(raw)\n\n" + METHOD,
    ),
    Fault(
        "bad-batches-are-named-errors", "a batch without rewards raised KeyError",
        "learnable.py", METHOD,
        "    def prepare_batch(self, raw):\n        raw['rewards']\n"
        "        return super().prepare_batch(raw)\n\n" + METHOD,
    ),
    Fault(
        "overflow-reaches-no-weight", "is not finite after an update with huge numbers",
        "learnable.py",
        "        loss.backward()\n"
        '        check_step("loss", loss.detach(), self.optimizer)  # NaN stops here, before any '
        "weight\n",
        "        (loss * batch.rewards.square().sum()).backward()\n",
    ),
    Fault(
        "every-optimised-parameter-moves", "target.0.",
        "learnable.py", *COPIED,
        more=(
            IMPORTED,
            (
                "            self.policy.named_modules(),",
                "            [*self.policy.named_modules(), *self.target.named_modules()],",
            ),
            (
                '        return {"loss"',
                "        with torch.no_grad():\n"
                "            pairs = zip(self.target.parameters(), self.policy.parameters())\n"
                "            for old, new in pairs:\n                old.lerp_(new, 0.5)\n"
                '        return {"loss"',
            ),
        ),
    ),
    Fault(
        "every-trainable-parameter-is-optimised",
        "no optimizer holds policy.1.weight, policy.1.bias",
        "learnable.py", "            self.policy.named_modules(),",
        "            self.policy[0].named_modules(),",
    ),
    Fault(
        "every-trainable-parameter-is-optimised", "untrained['target']: say why",
        "learnable.py", "    def build_networks",
        "    untrained = {'target': ' '}\n\n    def build_networks",
        more=(COPIED, IMPORTED),
    ),
    Fault(
        "every-trainable-parameter-is-optimised", "untrained['critic'] names nothing",
        "learnable.py", "    def build_networks",
        "    untrained = {'critic': 'it is random'}\n\n    def build_networks",
    ),
    Fault(
        "every-network-is-saved", "self.hidden holds a",
        "learnable.py", "        self.optimizer = config", "        self.hidden = {}\n"
        "        self.hidden['policy'] = config",
        more=(
            ("self.optimizer)", "self.hidden['policy'])"),
            ("self.optimizer.", "self.hidden['policy']."),
        ),
    ),
    Fault(
        "every-network-is-saved", "self.targets holds a Sequential",
        "learnable.py", "        self.optimizer = config",
        "        self.targets = [copy.deepcopy(self.policy).requires_grad_(False)]\n"
        "        self.optimizer = config",
        more=(IMPORTED,),
    ),
    Fault(
        "actions-lie-in-the-space", "act returns",
        "learnable.py", ACT, ACT.replace("(observations))", "(observations) + 5)"),
        {"regime": "offline"},
    ),
    Fault(
        "actions-lie-in-the-space", "returned [64], expected a tensor of shape [64, 2]",
        "learnable.py", ACT, ACT.replace("(observations))", "(observations))[:, 0]"),
    ),
    *(
        Fault(
            check, "after 1 update",
            "learnable.py", "        self.optimizer.step()\n",
            "        self.count = getattr(self, 'count', 0) + 1\n"
            f"        if self.count % {delay} == 1:\n            self.optimizer.step()\n",
        )
        for check in ("state-dict-restores-everything", "checkpoint-restores-everything")
        for delay in (2, 4)
    ),
    Fault(
        "losses-are-finite-numbers", "update 1 returns ['loss', 'other'], update 2 ['loss']",
        "learnable.py", 'return {"loss": loss.detach()}',
        'found = {"loss": loss.detach()}\n'
        '        return found if self.grad_step % 2 else {**found, "other": loss.detach()}',
    ),
    Fault(
        "losses-are-finite-numbers", "update 5 returns 'loss' = nan",
        "learnable.py", 'return {"loss": loss.detach()}',
        'return {"loss": loss.detach() if self.grad_step < 4 else float("nan")}',
    ),
    Fault(
        "terminated-next-state-has-no-influence", "between [B, 1] and [B]",
        "learnable.py", UPDATE,
        "        ahead = self.policy(batch.next_observations)[:, :1]\n"
        "        loss = loss + ((1 - batch.terminations) * ahead).square().mean()\n" + UPDATE,
    ),
    Fault(
        "training-changes-the-networks", "training changes no network",
        "learnable.py", "        self.optimizer.step()\n", "", ONLINE,
    ),
    Fault(
        "transitions-are-counted", "add the transitions of each update to self.env_steps",
        "learnable.py", "                self.env_steps += len(rows)\n", "", ONLINE,
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    "fault", FAULTS, ids=[f"{index}-{fault.check}" for index, fault in enumerate(FAULTS)]
)
def test_a_faulty_plugin_fails_the_check(fault, install):
    install(fault.apply(), metadata=fault.metadata)
    (check,) = [each for each in list_checks() if each.name == fault.check]
    subjects = [each for each in find_subjects("rlreg-faulty") if check.applies_to(each)]
    assert subjects, "the faulty plugin has nothing that the check is for"
    results = [run_check(check, subject) for subject in subjects]
    assert "failed" in [result.status for result in results]
    assert fault.message in " ".join(result.message for result in results)


def test_every_check_has_a_faulty_plugin():
    assert {fault.check for fault in FAULTS} == {check.name for check in list_checks()}


def test_every_check_says_in_one_sentence_what_it_proves():
    for check in list_checks():
        assert check.proves.endswith("."), check.name
        assert len(check.proves) < 110


# --- good plugins -------------------------------------------------------------------------------


def failures(name: str) -> list[str]:
    return [
        f"{result.subject} {result.check}: {result.message}"
        for result in run_checks(name)
        if result.status == "failed"
    ]


def test_the_example_passes(install):
    source = EXAMPLE / "src"
    files = {str(path.relative_to(source)): path.read_text() for path in source.rglob("*.py")}
    metadata = METADATA.replace("faulty", "bc")
    install(files, package="rlreg_bc", metadata=metadata)
    assert failures("rlreg-bc") == []


def test_a_parameter_in_no_optimizer_may_be_exempt_with_a_reason(install):
    fault = next(each for each in FAULTS if each.message == "untrained['target']: say why")
    files = fault.apply()
    name = "rlreg_faulty/learnable.py"
    install({**files, name: files[name].replace("{'target': ' '}", "{'target': 'it is copied'}")})
    (check,) = [each for each in list_checks() if each.name == fault.check]
    (subject,) = find_subjects("rlreg-faulty/faulty")
    assert run_check(check, subject).status == "passed"


test_iql_passes = conformance_tests("rlreg-iql")


# --- the kit itself -----------------------------------------------------------------------------


def test_a_name_means_a_distribution_or_one_learnable():
    by_distribution = find_subjects("rlreg-iql")
    assert [subject.label for subject in by_distribution][:2] == ["rlreg-iql", "iql"]
    assert "encoder.simba" in [subject.label for subject in by_distribution]
    assert find_subjects("RLREG_IQL") == by_distribution
    assert find_subjects("iql") == by_distribution
    assert [subject.label for subject in find_subjects("rlreg-iql/iql")] == ["iql"]


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'rlreg-iql'"):
        find_subjects("rlreg-iqll")


def test_a_broken_plugin_is_one_failure_with_its_cause(install):
    files = project_files()
    install({**files, "rlreg_faulty/plugin.py": "raise SystemExit(3)\n"})
    results = {result.check: result for result in run_checks("rlreg-faulty")}
    assert "SystemExit: 3" in results["hooks-are-found"].message
    assert results["it-stands-alone"].status == "skipped"
    failed = [name for name, result in results.items() if result.status == "failed"]
    assert failed == ["hooks-are-found"]


def test_what_is_no_learnable_is_asked_for_its_config_alone(install):
    files = project_files()
    name = "rlreg_faulty/learnable.py"
    lite = files[name].partition("class ")[0] + (
        "class FaultyLearner:\n"
        "    def __init__(self, config, device):\n        self.config = config\n"
    )
    install({**files, name: lite})
    results = list(run_checks("rlreg-faulty/faulty"))
    assert [result for result in results if result.status == "failed"] == []
    skipped = {result.check: result.message for result in results if result.status == "skipped"}
    assert "is no rlreg.Learnable" in skipped["same-seed-same-result"]
    assert "schema-and-validator-agree" not in skipped


class HandyEngine(rlreg.RolloutEngineFactory):
    """Gives what a test tells it to."""

    type: Literal["handy"] = "handy"
    loss: ClassVar[float] = 0.5
    leaves_process: ClassVar[bool] = False

    def create(self) -> float:
        if self.leaves_process:
            context = multiprocessing.get_context("spawn")
            context.Process(target=time.sleep, args=(60,), daemon=True).start()
        return self.loss


class HandyConfig(rlreg.LearnableConfig):
    """Collects through an engine."""

    regime: ClassVar[str] = "online"
    type: Literal["handy"] = "handy"
    num_transitions: ClassVar[int] = 1

    def create(self, device="auto"):
        import torch

        class HandyLearner(rlreg.OnlineLearnable):
            def build_networks(self, spaces):
                self.policy = torch.nn.Linear(3, spaces.action_size)

            def train_iterations(self, env):
                loss = self.engine.create()
                while True:
                    self.env_steps += self.config.num_transitions
                    self.grad_step += 1
                    yield {"loss/all": loss}

        return HandyLearner(self, device)


@pytest.mark.parametrize(
    ("cls", "changes", "message"),
    [
        (HandyEngine, {}, ""),
        (HandyEngine, {"loss": float("nan")}, "loss/all is nan"),
        (HandyEngine, {"leaves_process": True}, "1 processes are left after the training"),
        (HandyConfig, {"num_transitions": 0}, "no transition arrives"),
    ],
    ids=["in order", "not finite", "leaves a process", "collects nothing"],
)
def test_an_engine_is_tried_by_a_learnable_that_takes_it(cls, changes, message, monkeypatch):
    rlreg.register_component(HandyEngine)
    rlreg.register_learnable(HandyConfig)
    for name, value in changes.items():
        monkeypatch.setattr(cls, name, value)
    try:
        subject = Subject("engine", "handy", "local", HandyEngine)
        check = next(
            item for item in list_checks() if item.name == "create-keeps-the-promise-of-its-kind"
        )
        result = run_check(check, subject)
    finally:
        registry.forget_local(["handy"])
        for process in multiprocessing.active_children():
            process.kill()
    assert result.status == ("failed" if message else "passed"), result
    assert message in result.message


def test_expected_failures_need_a_check_and_a_reason():
    with pytest.raises(ConfigError, match="did you mean 'same-seed-same-result'"):
        conformance_tests("rlreg-iql", expected_failures={"same-seed-same-resul": "x"})
    with pytest.raises(ConfigError, match="say why"):
        conformance_tests("rlreg-iql", expected_failures={"same-seed-same-result": " "})


def test_tests_have_readable_names_and_marks():
    test = conformance_tests("rlreg-iql", expected_failures={"presets-are-valid": "none yet"})
    (mark,) = test.pytestmark
    ids = [case.id for case in mark.args[1]]
    assert "iql-same-seed-same-result" in ids
    assert "encoder.simba-create-keeps-the-promise-of-its-kind" in ids
    assert len(ids) == len(set(ids))
    (marked,) = [case for case in mark.args[1] if case.marks]
    assert marked.marks[0].name == "xfail"
    assert marked.marks[0].kwargs == {"reason": "none yet", "strict": True}
