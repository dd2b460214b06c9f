#!/usr/bin/env bash
# Builds the wheel of every distribution and tries them in a venv that has nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for project in . plugins/rlreg-iql plugins/rlreg-impala; do
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
if [ -d "$OLDPWD/rlreg/reference/builder_dist" ]; then
    test -s "$work/site/builder/builder.js" -a -s "$work/site/builder/LICENSES.txt"
fi
if "$work/venv/bin/python" -c "import rlreg; rlreg.create('iql', device='cpu')" 2>"$work/err"; then
    echo "created iql without torch?"; exit 1
fi
grep -q "pip install" "$work/err"
# With torch, borrowed from the developers' venv: a whole download would only test the index.
site=$("$python" -c "import torch, os; print(os.path.dirname(os.path.dirname(torch.__file__)))")
PYTHONPATH="" "$work/venv/bin/python" - "$site" <<'PY'
import sys
sys.path.append(sys.argv[1])
import rlreg
assert "site-packages" in rlreg.__file__, rlreg.__file__
for name in ("iql", "impala"):
    print(rlreg.create(name, device="cpu"))
PY
echo "wheels work"
