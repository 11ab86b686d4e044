#!/bin/sh
# Make the environment the benchmark runs in: the peers, torch, and what linlap itself needs (linlap is
# imported from the checkout). Run from anywhere; VENV and PYTHON may be set. Does nothing when up to date.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
venv=${VENV:-$here/../.venv-peers}
python=${PYTHON:-python3}
pins=$here/constraints-peers.txt
stamp=$venv/.peers-installed

fingerprint() { cat "$pins" "$here/setup_peers.sh"; }

if [ -f "$stamp" ] && fingerprint | cmp -s - "$stamp"; then
    exit 0
fi

"$python" -m venv --clear "$venv"
pip() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint "$pins" "$@"; }

# Whichever build of the pinned version pip finds first: on a machine without a GPU, let it see the CPU wheels.
pip torch
pip numpy scipy safetensors tqdm packaging
pip einops einconv unfoldNd opt_einsum linear_operator torchmetrics lightning-utilities
# Without their dependencies, which are those above and torchvision: torchmetrics imports torchvision when it
# is there, nothing measured here needs it, and a build for another torch fails at import.
pip --no-deps laplace-torch backpack-for-pytorch curvlinops-for-pytorch asdfghjkl

"$venv/bin/python" -c "import laplace, backpack, curvlinops, asdl"
fingerprint >"$stamp"
