"""What a user reads when a plugin is at fault: its name and the place, and no traceback."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import rlreg
from rlreg.cli.main import run
from rlreg.errors import LearnerError, NonFiniteError
from rlreg.faults import fault_of_plugin, place_in
from rlreg.testing.toy import Toy

LEARNABLE = "learnable.py"
RESULT = 'return {"loss": loss.detach()}'
LOSS = "        self.optimizer.zero_grad()\n"
GUARD = (
    '        check_step("loss", loss.detach(), self.optimizer)  '
    "# NaN stops here, before any weight\n"
)
NAN_AT_25 = "        loss = loss * (float('nan') if self.grad_step == 24 else 1)\n" + LOSS


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Toy data as a file that `rlreg train` reads, without an environment."""
    folder = tmp_path_factory.mktemp("minari")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        from rlreg.runtime.data.generate import generate

        generate("rlreg/pendulum/mixed-v0", n_steps=400)
        yield folder


@pytest.fixture
def train(data, tmp_path, monkeypatch, capsys):
    """Trains `faulty` for 40 updates in 4 epochs; gives exit code, stdout, stderr and folder."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(data))

    def train(*flags, before=()):
        out = tmp_path / "run"
        settings = ["train.n_steps_per_epoch=10", "evaluation.env=null", "learnable.batch_size=16"]
        sets = [part for item in settings for part in ("--set", item)]
        arguments = ["train", "faulty", "--steps", "40", "--device", "cpu", *sets, *flags]
        code = run([*before, *arguments, "--out", str(out)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err, out

    return train


FAULTS = {
    "a missing module": (
        ("import torch\n", "import torch\nimport no_such_module\n"),
        "rlreg-faulty 0.1.0 raised ModuleNotFoundError: No module named 'no_such_module' "
        "(rlreg_faulty/learnable.py:9); install what provides the module 'no_such_module'",
    ),
    "a syntax error": (
        ("import torch\n", "import torch\nx = = 1\n"),
        "SyntaxError: invalid syntax (learnable.py, line 9) (rlreg_faulty/learnable.py:9)",
    ),
    "update raises": (
        (LOSS, "        1 / 0\n" + LOSS),
        "rlreg-faulty 0.1.0 raised ZeroDivisionError: division by zero "
        "(rlreg_faulty/learnable.py:35); this is a fault of the plugin, not of rlreg",
    ),
    "torch raises": (
        (LOSS, "        torch.zeros(2) + torch.zeros(3)\n" + LOSS),
        "(rlreg_faulty/learnable.py:35); this is a fault of the plugin",
    ),
    "build raises": (
        ("        config: Any = self.config\n", "        config: Any = {}['a']\n"),
        "raised KeyError: 'a' (rlreg_faulty/learnable.py:20)",
    ),
    "no update": (
        ("def update", "def updated"),
        "'faulty' is not complete: FaultyLearner does not write update",
    ),
    "nothing": (
        (RESULT, "return None"),
        "FaultyLearner.update must return a dict of scalar losses; it returned None",
    ),
    "a vector": (
        (RESULT, 'return {"cloning_loss": self.policy(batch.observations).detach()}'),
        "update must return a dict of scalar losses; 'cloning_loss' is [16, 1]",
    ),
    "text": ((RESULT, 'return {"loss": "low"}'), "'loss' is a str"),
    "other names": (
        (RESULT, 'return {"loss": loss.detach(), **({} if self.grad_step % 2 else {"b": 1.0})}'),
        "update returned loss in update 2 and b, loss before; return the same names",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_plugin_is_named_with_its_place(name, edited, train):
    (old, new), message = FAULTS[name]
    edited((LEARNABLE, old, new))
    code, _, err, folder = train()
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert "bug in rlreg" not in err
    assert not folder.exists()  # nothing was trained: the same --out can be used again


def test_the_traceback_is_there_for_who_asks(edited, train):
    edited((LEARNABLE, LOSS, "        1 / 0\n" + LOSS))
    code, _, err, _ = train(before=["--traceback"])
    assert code == 2
    assert "Traceback" in err
    assert "in update" in err
    assert err.rstrip().splitlines()[-1].startswith("error: rlreg-faulty")


def test_with_json_a_fault_of_a_plugin_is_one_document(edited, train):
    edited((LEARNABLE, LOSS, "        1 / 0\n" + LOSS))
    code, out, _, _ = train("--json")
    assert (code, json.loads(out)["error"]["kind"]) == (2, "PluginError")


def test_an_error_inside_rlreg_is_still_its_own(edited):
    edited()
    with pytest.raises(TypeError) as caught:
        rlreg.create("faulty", device="cpu").load_rng_state(2)
    assert fault_of_plugin(caught.value) is None
    assert place_in(caught.value, "rlreg_faulty") == ""


def test_doctor_finds_a_method_that_is_not_written(edited):
    from rlreg.cli.probing import probe

    edited((LEARNABLE, "def update", "def updated"), (LEARNABLE, "def act", "def acts"))
    assert probe("faulty")["error"] == "its class does not write act, update"


@pytest.mark.parametrize("learnable", ["iql", "impala"])
def test_doctor_finds_nothing_to_write_in_what_is_complete(learnable):
    from rlreg.cli.probing import probe

    assert probe(learnable) == {"error": "", "remedy": ""}


# --- NaN ----------------------------------------------------------------------------------------


def test_nan_ends_a_run_at_the_epoch_with_the_loss_and_the_last_good_checkpoint(edited, train):
    edited((LEARNABLE, GUARD, ""), (LEARNABLE, LOSS, NAN_AT_25))
    code, _, err, folder = train()
    assert code == 2
    good = re.search(r"the last good checkpoint is (\S+)", err)
    assert "faulty: loss is nan in updates 21 to 30; " in err
    assert "check_step between backward() and step()" in err
    assert Path(good[1]).name == "step-000000000020.rlreg"
    loaded = rlreg.load(good[1], device="cpu")
    assert loaded.grad_step == 20
    assert all(bool(p.isfinite().all()) for p in loaded.policy.parameters())
    rows = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [10, 20]


def test_weights_that_are_nan_end_a_run_even_if_the_losses_hide_it(edited, train):
    step = "        self.optimizer.step()\n"
    poison = (
        step + "        if self.grad_step == 29:\n"
        "            with torch.no_grad():\n"
        "                self.policy[1].bias.fill_(float('nan'))\n"
    )
    edited(
        (LEARNABLE, GUARD, ""), (LEARNABLE, step, poison), (LEARNABLE, RESULT, "return {'a': 1.0}")
    )
    code, _, err, _ = train()
    assert code == 2
    assert "policy.1.bias is not finite in updates 21 to 30" in err


def test_a_guarded_nan_says_learnable_update_and_advice(edited, train):
    edited((LEARNABLE, LOSS, NAN_AT_25))
    code, _, err, folder = train()
    assert code == 2
    assert "error: faulty, update 25: loss is nan; a smaller learning rate" in err
    assert (folder / "last.rlreg").exists()


def toy_learnable(**settings):
    return rlreg.create("faulty", device="cpu", batch_size=16, **settings)


def test_fit_ends_at_the_epoch_too(edited):
    edited((LEARNABLE, GUARD, ""), (LEARNABLE, LOSS, NAN_AT_25))
    with pytest.raises(NonFiniteError, match="loss is nan in updates 21 to 30"):
        toy_learnable().fit(Toy("continuous").dataset(), 40, 10, show_progress=False)


# --- shapes -------------------------------------------------------------------------------------

POLICY = "torch.as_tensor(self.policy(observations))"


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (f"{POLICY}[:, 0]", r"FaultyLearner.act returned \[7\], expected .* shape \[7, 2\]"),
        (f"{POLICY}[:, :1]", r"returned \[7, 1\], expected a tensor of shape \[7, 2\]"),
        (f"{POLICY}[None]", r"returned \[1, 7, 2\], expected"),
        (f"{POLICY}.numpy()", "returned a ndarray, expected a tensor"),
        ("None", "returned a NoneType, expected a tensor"),
    ],
    ids=["vector", "column", "one more", "numpy", "None"],
)
def test_actions_of_another_shape_are_refused(returned, message, edited):
    edited((LEARNABLE, POLICY, returned))
    learnable = toy_learnable()
    learnable.build_with_dataset(Toy("continuous").dataset())
    for predict in (learnable.predict, learnable.sample_action):
        with pytest.raises(LearnerError, match=message):
            predict(Toy("continuous").observations(7))


def test_one_column_of_actions_is_not_taken_for_the_batch(edited):
    """With one column, [B] would be reshaped without a word."""
    import numpy as np
    from gymnasium.spaces import Box

    edited((LEARNABLE, POLICY, f"{POLICY}[:, 0]"))
    learnable = toy_learnable()
    learnable.build(Box(-1, 1, (3,)), Box(-2, 2, (1,)))
    with pytest.raises(LearnerError, match=r"returned \[5\], expected a tensor of shape \[5, 1\]"):
        learnable.predict(np.zeros((5, 3), np.float32))


def test_values_of_another_shape_are_refused(edited):
    values = "    def action_value(self, observations, actions):\n        return actions[:, :1]\n\n"
    edited((LEARNABLE, "    def act(", values + "    def act("))
    learnable, toy = toy_learnable(), Toy("continuous")
    learnable.build_with_dataset(toy.dataset())
    batch = toy.batch(5)
    with pytest.raises(LearnerError, match=r"action_value returned \[5, 1\], .* shape \[5\]"):
        learnable.predict_value(batch["observations"], batch["actions"])


def test_compile_that_changes_nothing_is_said(edited, train):
    edited()
    code, _, err, _ = train("--set", "compile=on")
    assert code == 0
    assert "compile: off, because 'faulty' has no compiled updates" in err
