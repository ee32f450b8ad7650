#!/usr/bin/env bash
# torch 2.13.0, Linux: every run of `torchrun` without `--log-dir` leaves a folder `torchelastic_*`, with a
# folder per restart and rank, in the temporary directory, also if all ranks succeed.  On hosts whose
# temporary directory is in memory, launchers that call torchrun for each job have to name a folder by
# `--log-dir` and delete it.
#
# Seen on 2026-11-30, x86-64, Python 3.11: one more folder after each of two successful runs.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
export OMP_NUM_THREADS=1 TMPDIR="$folder/temporary"
mkdir "$TMPDIR"
echo 'print("ran")' > "$folder/program.py"
for run in 1 2; do
    "$folder/venv/bin/torchrun" --nproc-per-node 2 "$folder/program.py" > "$folder/output"
    test "$(grep -c ran "$folder/output")" = 2
    left=$(find "$TMPDIR" -maxdepth 1 -name 'torchelastic_*' | wc -l)
    echo "$left left after $run"
    test "$left" = "$run"
done
"$folder/venv/bin/torchrun" --nproc-per-node 2 --log-dir "$folder/logs" "$folder/program.py" > "$folder/output"
test "$(find "$TMPDIR" -maxdepth 1 -name 'torchelastic_*' | wc -l)" = 2
echo "as described"
