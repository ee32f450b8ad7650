#!/usr/bin/env bash
# pyarrow 26.0.1: reading a Parquet file with the filter "in [0.0]" loses the rows of each row group whose numbers are all 0.0.
# Parquet's statistics of such a group are -0.0 and 0.0; the filter takes them for a group of -0.0 only, and `is_in`, unlike
# `==`, distinguishes the two.  The same filter on the table finds the rows, and so does "== 0.0" on the file.
#
# Seen on 2026-12-01, x86-64, Python 3.11: of two rows with 0.0, "in [0.0]" and "in [0.0, 5.0]" read none, also in float32;
# "== 0.0" reads both.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR="$folder"
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pyarrow==26.0.1
cd "$folder"
"$folder/venv/bin/python" - << 'EOF'
import pyarrow as pa
import pyarrow.parquet as pq

for kind in (pa.float64(), pa.float32()):
    table = pa.table({"x": pa.array([0.0, 0.0], kind)})
    pq.write_table(table, "x.parquet")
    seen = {}
    for given in (("x", "in", [0.0]), ("x", "in", [0.0, 5.0]), ("x", "==", 0.0)):
        read = pq.read_table("x.parquet", filters=[given])
        kept = table.filter(pq.filters_to_expression([given]))
        seen[str(given[1:])] = read.num_rows, kept.num_rows
    found = pq.ParquetFile("x.parquet").metadata.row_group(0).column(0).statistics
    print(kind, seen, f"statistics {found.min} to {found.max}")
    assert [*seen.values()] == [(0, 2), (0, 2), (2, 2)]
EOF
echo "as described"
