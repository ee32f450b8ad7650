#!/usr/bin/env bash
# onnxruntime 1.32.0 on Linux: `import onnxruntime` writes the file `.ses` into the temporary folder,
# with a time in milliseconds and a UUID, and later processes keep that UUID.  Calling
# `disable_telemetry_events()` afterwards does not remove it; ORT_DISABLE_TELEMETRY=1, set before the
# import, prevents it.  A program that checks that it leaves no files in TMPDIR has to set this.
#
# Seen on 2026-11-28, x86-64, Python 3.11:
#   default:                  .ses with 2 lines; the same UUID in the next process
#   disable_telemetry_events: .ses
#   ORT_DISABLE_TELEMETRY=1:  no file
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnxruntime==1.32.0
python="$folder/venv/bin/python"

files() { # print the names of the files that a program leaves in an empty temporary folder
    local temporary
    temporary=$(mktemp -d -p "$folder")
    env -u ORT_DISABLE_TELEMETRY TMPDIR="$temporary" "${@:2}" "$python" -c "$1"
    ls -A "$temporary"
}

mkdir "$folder/kept"
for _ in 1 2; do
    env -u ORT_DISABLE_TELEMETRY TMPDIR="$folder/kept" "$python" -c 'import onnxruntime'
    sed -n 2p "$folder/kept/.ses" >> "$folder/uuids"
done
wc -l < "$folder/kept/.ses"
grep -cE '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' "$folder/uuids"
test "$(sort -u "$folder/uuids" | wc -l)" == 1
test "$(files 'import onnxruntime as o; o.disable_telemetry_events()')" == .ses
test "$(files 'import onnxruntime' ORT_DISABLE_TELEMETRY=1)" == ""
echo "as described"
