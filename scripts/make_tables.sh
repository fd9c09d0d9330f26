#!/usr/bin/env bash
# Remakes the shipped tables of nld-tiny: cost, value and branch table, and a policy for each clock.
#
#   scripts/make_tables.sh [data folder, default RECGUIDE_DATA_DIR] [out, default tables]
#
# Run it when the weights change. Calibrates on training halves and instruction prompts, so that
# the test sets stay held out. Takes some ten minutes on two cores; REQUESTS, TOKENS, BUDGET
# (seconds of profiling) and TUNE (options of tune) trade time for precision. The trace and the recordings stay in build/tables.
set -euo pipefail
cd "$(dirname "$0")/.."
export RECGUIDE_DATA_DIR=${1:-${RECGUIDE_DATA_DIR:-}}
out=${2:-tables}
work=build/tables
data=${DATA:-demo,gsm8k_train,mbpp_train,ifeval}
recguide=${RECGUIDE:-.venv/bin/recguide}

: "${RECGUIDE_DATA_DIR:?Set it to the folder with the JSONL files of the benchmarks.}"
mkdir -p "$work" "$out"
"$recguide" profile --any-cpu --threads 1 --cpu-time --requests 1,2,4,8,16,32,64 --budget "${BUDGET:-180}" --out "$work/cpu-nld-tiny.cost.arrow"
"$recguide" calibrate --data "$data" --requests "${REQUESTS:-96}" --max-tokens "${TOKENS:-160}" \
    --out "$work" --overwrite
"$recguide" tune --tables "$work" --concurrency "${LOADS:-1,4,8,32,64}" ${TUNE:-}
for clock in b200/nld-8b b200/nld-14b; do
    "$recguide" tune --tables "$work" --clock "$clock" --concurrency "${CLOCK_LOADS:-1,8,32,128}" ${TUNE:-}
done
for kind in cost value branch; do
    cp "$work/cpu-nld-tiny.$kind.arrow" "$out/"
done
cp "$work"/*.policy.json "$out/"
