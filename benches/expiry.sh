#!/usr/bin/env bash
# Measures a mass expiry on a running server (see expiry.py). Needs python3 and a build.
# Usage: benches/expiry.sh [TODANA [RECORDS]]
set -euo pipefail
cd "$(dirname "$0")/.."
TODANA=${1:-${CARGO_TARGET_DIR:-target}/release/todana}
SCRATCH=$(mktemp -d)
PID=
trap '[ -z "$PID" ] || { kill "$PID"; wait "$PID" || true; }; rm -rf "$SCRATCH"' EXIT
date -u +%F; uname -sr; grep -m1 'model name' /proc/cpuinfo; nproc; git log -1 --format='commit %h'
"$TODANA" serve -p -1 -m 0 >"$SCRATCH/banner" & PID=$!
for _ in $(seq 100); do grep -q '^try' "$SCRATCH/banner" && break; sleep 0.1; done
ADDRESS=$(sed -n 's/^listening on //p' "$SCRATCH/banner")
python3 benches/expiry.py "${ADDRESS##*:}" "$PID" ${2:+"$2"}
