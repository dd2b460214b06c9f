"""Module-level imports point one way; core never names a plugin."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.light

CORE = Path(__file__).parent.parent / "rlreg"
LAYERS = [
    {"errors", "atomic_file", "json_text", "parent_process", "starting"},
    {"archive", "strictness", "device", "blocking", "migrations", "search"},
    {"yaml_reader", "distributions", "hooks"},
    {"entry_points", "names"},
    {"faults"},
    {"open_union"},
    {"config"},
    {"scalers"},
    {"components", "run_config", "problems"},
    {"contract", "run_defaults"},
    {"plugins", "records"},
    {"registry"},
    {"discovery"},
    {"schema_editor"},
    {"creation", "schema", "schema_diff", "documents", "manifest"},
    {"catalog", "manifest_index"},
    {"files", "file_migration", "overrides", "yaml_text"},
    {"identity", "search_space"},
    {"reference", "scaffold"},
    {"runtime"},
    {"testing"},
    {"cli"},
]
HEAVY = {"torch", "numpy", "gymnasium", "minari", "h5py", "safetensors"}


def layer_of(module: str) -> int:
    for level, names in enumerate(LAYERS):
        if module in names:
            return level
    raise AssertionError(f"rlreg/{module} has no place in LAYERS: add it where it belongs")


def imports_of(path: Path) -> list[str]:
    """Names imported at module level, outside `if TYPE_CHECKING`."""
    found: list[str] = []

    def visit(nodes):
        for node in nodes:
            if isinstance(node, ast.Import):
                found.extend(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                found.extend(
                    f"rlreg.{alias.name}" if module == "rlreg" else module for alias in node.names
                )
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                visit(node.orelse)
            elif isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef):
                visit(ast.iter_child_nodes(node))

    visit(ast.parse(path.read_text()).body)
    return found


def core_files():
    return [
        path
        for path in CORE.rglob("*.py")
        if path.relative_to(CORE).parts[0] not in ("__init__.py", "__main__.py")
    ]


@pytest.mark.parametrize("path", core_files(), ids=lambda path: str(path.relative_to(CORE)))
def test_imports_point_down(path):
    own = layer_of(path.relative_to(CORE).parts[0].removesuffix(".py"))
    for name in imports_of(path):
        if name.startswith("rlreg."):
            part = name.split(".")[1]
            if (CORE / part).exists() or (CORE / f"{part}.py").exists():
                assert layer_of(part) <= own, f"{path.name} imports {name}, which stands above it"


@pytest.mark.parametrize("path", core_files(), ids=lambda path: str(path.relative_to(CORE)))
def test_only_the_runtime_imports_heavy_packages(path):
    if path.relative_to(CORE).parts[0] == "runtime":
        return
    heavy = {name.split(".")[0] for name in imports_of(path)} & HEAVY
    assert not heavy, f"{path} imports {heavy} at module level"


@pytest.mark.parametrize("path", core_files(), ids=lambda path: str(path.relative_to(CORE)))
def test_core_imports_no_plugin(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        assert not [name for name in names if name.startswith("rlreg_")]
