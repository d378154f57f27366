#!/usr/bin/env bash
# What a data directory costs and gives, measured: memory and latency while a checkpoint is made (4), restart (5), CPU time of a set
# with a log (6), sets a second that are on disk before they are answered (7), bytes on disk (9). Needs a release build, python3 and,
# as the rival of 5 and 7, redis-server or valkey-server with its benchmark: from the PATH, or RIVAL=/path/to/redis-server. Everything
# runs on loopback on ports of the system's choice and is stopped at the end, after half an hour at the latest. The data goes to a
# new folder in TMPDIR (else /var/tmp), which is to be on the disk that is to be measured; it is removed again.
# Usage: benches/durability.sh [TODANA [BAR]...]        RECORDS=10000000 ROUNDS=5
set -euo pipefail
cd "$(dirname "$0")/.."
TODANA=${1:-${CARGO_TARGET_DIR:-target}/release/todana}
shift || true
date -u +%F; uname -sr; grep -m1 'model name' /proc/cpuinfo; nproc; git log -1 --format='commit %h'
exec timeout --kill-after=10 1800 python3 benches/durability.py "$TODANA" "$@"
