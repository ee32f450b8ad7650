#!/usr/bin/env bash
# MPICH 5.0.2 (mpi4py 4.1.2): `Allreduce` with MAX or MIN gives different numbers on different processes if one of them
# contributes NaN, and a minimum that is greater than the process's own number.  A program that stops all processes where
# a global norm or loss is NaN, or above a limit, stops some of them, and the others wait.  SUM is NaN on all.
#
# Seen on 2026-12-01, x86-64, Python 3.11, four processes with 0, NaN, 2 and 3: the maxima are 3, 3, NaN and 3, the
# minima 2, 0, NaN and 0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q mpi4py==4.1.2 mpich==5.0.2 numpy==2.4.6
cat > "$folder/program.py" << 'EOF'
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
own = np.array([np.nan if world.rank == 1 else float(world.rank)])
seen = {}
for name, op in {"maximum": MPI.MAX, "minimum": MPI.MIN, "sum": MPI.SUM}.items():
    result = np.zeros(1)
    world.Allreduce(own, result, op)
    seen[name] = world.gather(str(result[0]))
if world.rank == 0:
    print(seen)
    assert seen == {
        "maximum": ["3.0", "3.0", "nan", "3.0"],
        "minimum": ["2.0", "0.0", "nan", "0.0"],
        "sum": ["nan"] * 4,
    }
EOF
"$folder/venv/bin/mpiexec" -n 4 "$folder/venv/bin/python" "$folder/program.py"
echo "as described"
