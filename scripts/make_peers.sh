#!/usr/bin/env bash
# Builds the environments of the peers that benchmarks/ compares with, from PyPI, each on its own:
#     scripts/make_peers.sh [NAME...]        NAME: d3rlpy, jax, torchrl, rllib, sb3; all if none is given
# A peer that is there already is left alone; delete benchmarks/.peers/NAME to build it anew.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
peers=benchmarks/.peers

# torch goes first and pinned, as for rlreg itself: every peer computes with the same build.
torch=$(grep '^torch==' constraints.txt)

declare -A first=([d3rlpy]="$torch" [jax]="" [torchrl]="$torch" [rllib]="$torch" [sb3]="$torch")
declare -A packages=(
    # d3rlpy reads Minari data sets with these; benchmarks/evidence measures what it makes of them.
    [d3rlpy]="d3rlpy==2.8.1 minari[hdf5]==0.5.4 gymnasium-robotics mujoco"
    [jax]="jax==0.10.2"
    [torchrl]="torchrl"
    [rllib]="ray[rllib]==2.60.*"
    [sb3]="stable-baselines3==2.9.*"
)
# What to import where it is not the name of the peer.
declare -A module=([rllib]="ray" [sb3]="stable_baselines3")

for name in "${@:-d3rlpy jax torchrl rllib sb3}"; do
    # Unquoted: the default is several names.
    for peer in $name; do
        if [ -z "${packages[$peer]:-}" ]; then
            echo "error: no such peer: $peer; expected d3rlpy, jax, torchrl, rllib or sb3" >&2
            exit 2
        fi
        if [ -f "$peers/$peer/.installed" ]; then
            echo "$peer: already there"
            continue
        fi
        "$python" -m venv --clear "$peers/$peer"
        pip=("$peers/$peer/bin/python" -m pip install -q --disable-pip-version-check)
        if [ -n "${first[$peer]}" ]; then
            "${pip[@]}" "${first[$peer]}"
        fi
        # Several words where a peer needs several packages.
        read -ra wanted <<<"${packages[$peer]}"
        "${pip[@]}" "${wanted[@]}"
        "$peers/$peer/bin/python" -m pip freeze --disable-pip-version-check >"$peers/$peer/.installed"
        echo "$peer: $("$peers/$peer/bin/python" -c "import ${module[$peer]:-$peer} as m; print(m.__version__)")"
    done
done
