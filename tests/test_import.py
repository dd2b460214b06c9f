"""`import rlreg` stays light: no torch, no model class, little time."""

from __future__ import annotations

import json

import pytest

import rlreg

pytestmark = pytest.mark.light

HEAVY = ("torch", "numpy", "gymnasium", "minari", "h5py", "rich", "ruamel", "jinja2", "pydantic")


def test_import_brings_in_nothing_heavy(run_python):
    out = run_python(f"import rlreg, sys; print([m for m in {HEAVY} if m in sys.modules])")
    assert out.strip() == "[]"


def test_looking_names_up_does_not_import_torch(run_python):
    code = (
        "import rlreg, sys, json\n"
        "rlreg.list_learnables(); rlreg.list_plugins(); rlreg.list_components()\n"
        "for each in rlreg.list_learnables():\n"
        "    rlreg.json_schema(each.id); rlreg.make_config(each.id)\n"
        "rlreg.json_schema('run')\n"
        f"print(json.dumps([m for m in {HEAVY[:4]} if m in sys.modules]))"
    )
    assert json.loads(run_python(code)) == []


def test_all_is_sorted_and_complete():
    def natural(name: str) -> tuple[bool, bool, str]:  # the order ruff's RUF022 keeps
        return (not name.isupper(), not name[0].isupper(), name)

    names = [name for name in rlreg.__all__ if name != "__version__"]
    assert names == sorted(names, key=natural)
    assert len(set(names)) == len(names)
    assert set(rlreg.__all__) - {"__version__"} == set(rlreg._HOME)


def test_unknown_attribute_suggests_the_nearest_name():
    with pytest.raises(AttributeError, match="did you mean 'create'"):
        rlreg.creat  # noqa: B018 - the look-up itself is under test


def test_heavy_name_without_torch_says_what_to_install(run_python, tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('none', name='torch')")
    code = (
        "import rlreg\n"
        "try:\n    rlreg.Learnable\n"
        "except rlreg.RlregError as error:\n    print(type(error).__name__, error)"
    )
    out = run_python(code, path=[tmp_path])
    assert "MissingExtraError" in out
    assert "pip install 'rlreg[torch]'" in out
