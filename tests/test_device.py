"""The device grammar, parsed without torch and resolved with whatever the machine has."""

from __future__ import annotations

import pytest

import rlreg
from rlreg import device as device_module
from rlreg.device import Device, DeviceSpec
from rlreg.errors import DeviceError, DeviceUnavailableError


class FakeTorchDevice:
    """Looks like torch.device, for the parser, which must not import torch."""

    def __init__(self, type, index=None):
        self.type, self.index = type, index

    def __repr__(self):  # ids of tests must not depend on addresses
        return f"FakeTorchDevice({self.type!r}, {self.index!r})"


ACCEPTED = [
    ("cpu", "cpu"),
    ("cuda", "cuda"),
    ("cuda:0", "cuda:0"),
    ("cuda:15", "cuda:15"),
    ("mps", "mps"),
    ("mps:0", "mps:0"),
    ("xpu", "xpu"),
    ("xpu:3", "xpu:3"),
    (0, "cuda:0"),
    (2, "cuda:2"),
    (True, "cuda:0"),
    (False, "cpu"),
    (None, "cpu"),
    (("cuda", 1), "cuda:1"),
    (FakeTorchDevice("cuda", 1), "cuda:1"),
    (FakeTorchDevice("cpu"), "cpu"),
    (["cuda:1", "cuda", "cpu"], "cuda:1, cuda, cpu"),
    (("cuda", "cpu"), "cuda, cpu"),
    (["cuda:0", 0, "cpu"], "cuda:0, cpu"),
    ("auto", "auto"),
]


@pytest.mark.light
@pytest.mark.parametrize(("value", "meaning"), ACCEPTED, ids=[str(row[0]) for row in ACCEPTED])
def test_every_form_of_the_grammar_is_parsed(value, meaning):
    assert str(DeviceSpec.parse(value)) == meaning


REFUSED = [
    "cuda:01", "cuda:-1", "cuda:", ":0", "CUDA", "gpu", "cudda", "meta", "", " cpu", "cpu:1",
    "mps:2",
    -1, 4096, 1.0, b"cpu", [], ["cpu", []], ("cuda", 1, 2.5), {"type": "cpu"}, ("cuda:0", 1),
    FakeTorchDevice("meta"),
]  # fmt: skip


@pytest.mark.light
@pytest.mark.parametrize("value", REFUSED, ids=repr)
def test_anything_else_is_refused_with_the_grammar(value):
    with pytest.raises(DeviceError):
        DeviceSpec.parse(value)


@pytest.mark.light
def test_misspelt_device_suggests_the_nearest():
    with pytest.raises(DeviceError, match="did you mean 'cuda'"):
        DeviceSpec.parse("cudda")


@pytest.mark.light
def test_parsing_does_not_import_torch(run_python):
    code = (
        "import rlreg, sys\n"
        "rlreg.DeviceSpec.parse(['cuda:1', 'mps', 'cpu']); rlreg.DeviceSpec.parse('auto')\n"
        "print('torch' in sys.modules)"
    )
    assert run_python(code).strip() == "False"


@pytest.fixture
def machine(monkeypatch):
    """Fakes what the machine has: the one seam between the grammar and torch."""

    def has(**counts: int) -> None:
        monkeypatch.setattr(device_module, "_count", lambda kind: {"cpu": 1, **counts}.get(kind, 0))

    return has


def test_auto_takes_the_best_device_and_says_why(machine):
    machine(cuda=2)
    assert DeviceSpec.parse("auto").resolve().name == "cuda"
    machine(mps=1)
    chosen = DeviceSpec.parse("auto").resolve()
    assert chosen.name == "mps"
    assert "no cuda" in chosen.report
    machine()
    assert DeviceSpec.parse("auto").resolve().name == "cpu"


def test_a_list_falls_back_in_order(machine):
    machine(cuda=1)
    chosen = DeviceSpec.parse(["cuda:1", "cuda:0", "cpu"]).resolve()
    assert chosen.name == "cuda:0"
    assert "no cuda:1, only 1" in chosen.report


@pytest.mark.parametrize("value", ["cuda", "cuda:0", "mps", "xpu:0", 0, True])
def test_a_single_device_never_falls_back(machine, value):
    machine()
    with pytest.raises(DeviceUnavailableError, match="this machine has cpu"):
        DeviceSpec.parse(value).resolve()


def test_index_out_of_range_says_how_many_there_are(machine):
    machine(cuda=2)
    with pytest.raises(DeviceUnavailableError, match=r"only 2 of type cuda.*cpu, cuda:0, cuda:1"):
        DeviceSpec.parse("cuda:7").resolve()


def test_bare_index_forms_mean_the_same_device(machine):
    machine(cuda=1)
    assert {DeviceSpec.parse(v).resolve().name for v in (0, True, "cuda:0", ("cuda", 0))} == {
        "cuda:0"
    }


def test_real_torch_devices_are_parsed():
    torch = pytest.importorskip("torch", reason="this form needs torch")
    assert DeviceSpec.parse(torch.device("cuda", 1)).choices == (Device("cuda", 1),)
    assert DeviceSpec.parse("cpu").resolve().torch == torch.device("cpu")


def test_create_on_a_missing_gpu_is_one_clear_error(machine):
    machine()
    with pytest.raises(rlreg.RlregError, match=r"cuda:0.*this machine has cpu"):
        rlreg.create("iql", device="cuda:0")


@pytest.mark.gpu
def test_create_on_a_gpu():
    assert str(rlreg.create("iql", device="cuda:0").device) == "cuda:0"
