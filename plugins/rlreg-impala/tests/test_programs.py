"""A program that trains is run once, whatever it defines and registers."""

import subprocess
import sys

import pytest
from processes import LONG_S

SLOW = pytest.mark.slow

PROGRAM = """
import sys
import gymnasium
import rlreg

print("run", flush=True)

class Mine(gymnasium.Wrapper):
    def __init__(self, **kwargs):
        super().__init__(gymnasium.make("CartPole-v1"))

gymnasium.register("Mine-v0", entry_point={entry})
impala = rlreg.create("impala", device="cpu", seed=0)
engine = {{"type": "process", "start_method": "{method}"}}
impala.train({env}, n_steps=300, engine=engine)
print(impala.env_steps >= 300)
"""


@pytest.mark.parametrize(
    ("entry", "env", "method"),
    [
        ("'__main__:Mine'", "'Mine-v0'", "forkserver"),
        ("Mine", "gymnasium.spec('Mine-v0')", "forkserver"),
        pytest.param("Mine", "'Mine-v0'", "forkserver", marks=SLOW),
        pytest.param("Mine", "Mine", "forkserver", marks=SLOW),
        pytest.param("'__main__:Mine'", "'Mine-v0'", "spawn", marks=SLOW),
    ],
)
def test_actors_know_the_environments_of_a_program_and_do_not_run_it(entry, env, method, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(entry=entry, env=env, method=method))
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=LONG_S, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["run", "True"]
