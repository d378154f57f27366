#!/usr/bin/env bash
# Measures the cost of a data directory: memory and latency during a checkpoint (4), time of a
# restart (5), CPU time of a set with an update log (6), sets per second that are on disk before
# their reply (7), bytes on disk (9). The numbers are those of the bars. Needs a release build,
# python3 and, as the rival of 5 and 7, redis-server or valkey-server with its benchmark, from the
# PATH or as RIVAL=/path/to/redis-server.
# All servers run on loopback on ports that the system chooses, and are stopped at the end, after
# half an hour at the latest. The data is written to a new folder in TMPDIR (default /var/tmp),
# which must be on the disk to measure, and is removed at the end.
# Usage: benches/durability.sh [TODANA [BAR]...]        RECORDS=10000000 ROUNDS=5
set -euo pipefail
cd "$(dirname "$0")/.."
TODANA=${1:-${CARGO_TARGET_DIR:-target}/release/todana}
shift || true
date -u +%F; uname -sr; grep -m1 'model name' /proc/cpuinfo; nproc; git log -1 --format='commit %h'
exec timeout --kill-after=10 1800 python3 benches/durability.py "$TODANA" "$@"
