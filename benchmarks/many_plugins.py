"""``rlreg list`` with 300 plugins that import torch at module level, against three of them.

Each plugin carries a manifest, so listing imports none. Processor time is compared. The packages
are generated: no pip, no index.
``python benchmarks/many_plugins.py [--plugins 300] [--repeats 11] [--json]`` exits with 3 if many
take twice as long as few.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

FEW = 3
LIMIT = 2.0
PLUGIN = '''
import torch
from typing import Literal, ClassVar
from pydantic import Field
import rlreg

class Many{number}Config(rlreg.LearnableConfig):
    """Number {number} of many."""
    regime: ClassVar[str] = "offline"
    type: Literal["many-{number}"] = "many-{number}"
    batch_size: int = Field(256, ge=1, le=65536, description="Minibatch. Default: ours, 256.")
    encoder_factory: rlreg.EncoderFactory = rlreg.make_encoder_field()
    optim_factory: rlreg.OptimizerFactory = rlreg.make_optimizer_field()

@rlreg.hookimpl
def rlreg_learnables():
    return [Many{number}Config]
'''
MAKE = """
import sys
from rlreg.manifest import make_manifest, write_manifest
for name in sys.argv[1:]:
    write_manifest(*make_manifest(name))
"""


def write_plugins(site: Path, count: int) -> None:
    """Leaves in ``site`` what pip would, manifests included."""
    names = []
    for number in range(count):
        package = site / f"rlreg_many_{number}"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "plugin.py").write_text(PLUGIN.replace("{number}", str(number)))
        info = site / f"rlreg_many_{number}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: rlreg-many-{number}\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(
            f"[rlreg]\nmany-{number} = rlreg_many_{number}.plugin\n"
        )
        names.append(f"rlreg-many-{number}")
    run("-c", MAKE, *names, site=site)


def run(*arguments: str, site: Path, config: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-P", *arguments],
        env={
            **os.environ,
            "PYTHONPATH": str(site),
            "XDG_CONFIG_HOME": str(config or site),
            "RLREG_BLOCK_PLUGINS": "",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def seconds(site: Path) -> float:
    """Returns the processor time of a listing, which a busy machine changes less than its wall."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run("-m", "rlreg", "list", site=site)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def check_nothing_is_imported(site: Path, count: int) -> None:
    code = (
        "import sys\nfrom rlreg.cli.main import main\n"
        "sys.argv = ['rlreg', 'list', '--json']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert 'torch' not in sys.modules\n"
    )
    listed = json.loads(run("-c", code, site=site))["learnables"]
    assert sum(item["name"].startswith("many-") for item in listed) == count


def measure(folder: Path, count: int, repeats: int) -> dict[str, float]:
    sites = {}
    for name, number in (("few", FEW), ("many", count)):
        sites[name] = folder / name
        write_plugins(sites[name], number)
        check_nothing_is_imported(sites[name], number)
    times: dict[str, list[float]] = {"few": [], "many": [], "ratio": []}
    for _ in range(repeats):  # in turn, so that a busy machine slows both
        few, many = seconds(sites["few"]), seconds(sites["many"])
        times["few"].append(few)
        times["many"].append(many)
        times["ratio"].append(many / few)
    return {name: median(values) for name, values in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--plugins", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="many-plugins-"))
    try:
        result = measure(folder, arguments.plugins, arguments.repeats)
    finally:
        shutil.rmtree(folder)
    if arguments.json:
        print(json.dumps({"plugins": arguments.plugins, "limit": LIMIT, **result}))
    else:
        print(f"rlreg list with {FEW} plugins:   {result['few'] * 1000:7.0f} ms")
        print(f"rlreg list with {arguments.plugins} plugins: {result['many'] * 1000:7.0f} ms")
        print(f"ratio {result['ratio']:.2f}, allowed {LIMIT}")
    return 0 if result["ratio"] < LIMIT else 3


if __name__ == "__main__":
    sys.exit(main())
