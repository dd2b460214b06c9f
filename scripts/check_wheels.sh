#!/usr/bin/env bash
# Builds the wheels of rlreg, its plugins and two examples, and tries them in a clean venv.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$PWD
for project in . plugins/rlreg-iql plugins/rlreg-impala examples/rlreg-bc examples/rlreg-sb3; do
    # From a copy: a build in place would leave its folders in the checkout.
    copy="$work/src/$(basename "$(realpath "$project")")"
    mkdir -p "$copy"
    git ls-files -z --cached --others --exclude-standard -- "$project" |
        grep -zv -e '^tests/' -e '^schemas/' |
        (if [ "$project" = . ]; then grep -zv -e '^plugins/' -e '^examples/'; else cat; fi) |
        while IFS= read -r -d '' file; do
            target="$copy/${file#"$project"/}"
            mkdir -p "$(dirname "$target")"
            cp "$file" "$target"
        done
    # git does not know what `make builder` made, but wheels carry it.
    if [ "$project" = . ] && [ -d rlreg/reference/builder_dist ]; then
        cp -r rlreg/reference/builder_dist "$copy/rlreg/reference/"
    fi
    "$python" -m build --wheel --no-isolation --outdir "$work/wheels" "$copy" >/dev/null
done
ls "$work/wheels"
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check -c constraints.txt \
    "$work"/wheels/rlreg-[0-9]*.whl
"$work/venv/bin/rlreg" --version
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps "$work"/wheels/*.whl
cd "$work"
# Without torch: listing, schemas and docs work; creating says what to install.
"$work/venv/bin/rlreg" list
"$work/venv/bin/rlreg" schema iql >/dev/null
"$work/venv/bin/rlreg" docs build "$work/site" >/dev/null
if [ -d "$root/rlreg/reference/builder_dist" ]; then
    test -s "$work/site/builder/builder.js" -a -s "$work/site/builder/LICENSES.txt"
fi
if "$work/venv/bin/python" -c "import rlreg; rlreg.create('iql', device='cpu')" 2>"$work/err"; then
    echo "created iql without torch?"; exit 1
fi
grep -q "pip install" "$work/err"
# With torch, borrowed from the developers' venv: a whole download would only test the index.
site=$("$python" -c "import torch, os; print(os.path.dirname(os.path.dirname(torch.__file__)))")
echo "$site" >"$("$work/venv/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")/borrowed.pth"
export PYTHONPATH="" OMP_NUM_THREADS=1
"$work/venv/bin/python" - <<'PY'
import rlreg
assert "venv" in rlreg.__file__, rlreg.__file__
for name in ("iql", "impala"):
    print(rlreg.create(name, device="cpu"))
PY
echo "wheels work"

# Two algorithms of other authors: trained, saved, loaded in a fresh process, and checked.
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check -c "$root/constraints.txt" \
    "stable-baselines3>=2.6"
"$work/venv/bin/python" - <<'PY'
import json
import gymnasium, numpy as np, rlreg
pendulum = gymnasium.make("Pendulum-v1")
rng = np.random.default_rng(0)
data = rlreg.TransitionDataset.from_arrays(
    observations=rng.normal(size=(64, 3)).astype(np.float32),
    actions=rng.uniform(-2, 2, (64, 1)).astype(np.float32),
    rewards=rng.normal(size=64).astype(np.float32),
    terminations=np.arange(64) % 16 == 15,
    observation_space=pendulum.observation_space,
    action_space=pendulum.action_space,
)
bc = rlreg.create("bc", device="cpu", seed=0)
bc.fit(data, n_steps=20, n_steps_per_epoch=10, show_progress=False)
ppo = rlreg.create("sb3-ppo", device="cpu", seed=0, n_steps=32, batch_size=16)
ppo.train("Pendulum-v1", n_epochs=1, epoch_length=2)
sac = rlreg.create("sb3-sac", device="cpu", seed=0, n_steps=32, batch_size=16, learning_starts=8)
sac.train("Pendulum-v1", n_epochs=1, epoch_length=2)
rows = data.observations[:4]
predictions = {}
for name, learnable in {"bc": bc, "ppo": ppo, "sac": sac}.items():
    learnable.save(f"{name}.rlreg")
    predictions[name] = learnable.predict(rows).tolist()
with open("expected.json", "w") as file:
    json.dump([rows.tolist(), predictions], file)
PY
"$work/venv/bin/python" - <<'PY'
import json
import numpy as np, rlreg
with open("expected.json") as file:
    rows, predictions = json.load(file)
for name, expected in predictions.items():
    loaded = rlreg.load(f"{name}.rlreg", device="cpu")
    found = loaded.predict(np.asarray(rows, np.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    print(f"{name}.rlreg: predicts in a fresh process what it did")
PY
# The whole kit on bc; of sb3, whose own tests run all of it, what a short rollout allows.
"$work/venv/bin/rlreg" check rlreg-bc | tail -n 1
"$work/venv/bin/rlreg" check rlreg-sb3 --only importing-it-is-light --only it-stands-alone \
    --only schema-and-validator-agree --only round-trip-through-yaml | tail -n 1
echo "examples work"
