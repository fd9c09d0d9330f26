#!/usr/bin/env bash
# Tests of the SGLang engine in an environment of its own: SGLang on a CPU build of torch.
# Each engine runs in a child process; SGLang's KV leak checks are on. Arguments go to pytest:
# `scripts/test_sglang.sh tests/sglang -m slow` runs what takes minutes more.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv-sglang}
READY=$VENV/.recguide-ready
WANTED=$(cat tests/sglang/requirements-cpu.txt pyproject.toml | sha256sum)
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export PIP_DISABLE_PIP_VERSION_CHECK=1

if [ "$(cat "$READY" 2>/dev/null)" != "$WANTED" ]; then
    echo "Making $VENV (about 4 GB)"
    [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
    # The full sets of sglang and sglang-kernel bring CUDA libraries that no CPU test loads.
    nice "$VENV/bin/pip" install --quiet torch==2.13.0
    nice "$VENV/bin/pip" install --quiet --no-deps sglang==0.5.23 sglang-kernel==0.4.10
    nice "$VENV/bin/pip" install --quiet -r tests/sglang/requirements-cpu.txt
    nice "$VENV/bin/pip" install --quiet --no-deps --editable .
    echo "$WANTED" > "$READY"
fi

if [ $# -eq 0 ]; then
    set -- tests/sglang -m "not slow"
fi
exec nice -n 5 "$VENV/bin/python" -m pytest -q --durations=8 "$@"
