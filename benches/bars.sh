#!/usr/bin/env bash
# Measures the figures that this version promises: the server's anonymous memory, RssAnon (bars 1-4
# and 8); its CPU time compared with memcached's (bar 7); and CPU time in process (bars 5 and 6).
# Needs a release build, python3 and, for bar 7, memcached. All servers run on loopback on ports
# that the system chooses, and are stopped at the end.
# Usage: benches/bars.sh [TODANA]
set -euo pipefail
cd "$(dirname "$0")/.."
TODANA=${1:-${CARGO_TARGET_DIR:-target}/release/todana}
SCRATCH=$(mktemp -d)
PID=
MEMCACHED=
stop() { for pid in $PID $MEMCACHED; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true; done; PID=; MEMCACHED=; }
trap 'stop; rm -rf "$SCRATCH"' EXIT

start() {
    "$TODANA" serve -p -1 "$@" >"$SCRATCH/banner" & PID=$!
    for _ in $(seq 100); do grep -q '^try' "$SCRATCH/banner" && break; sleep 0.1; done
    ADDRESS=$(sed -n 's/^listening on //p' "$SCRATCH/banner")
}
rss() { grep RssAnon "/proc/$PID/status"; }
load() { "$TODANA" bench "$ADDRESS" --load-only --pid "$PID" "$@" | grep -E 'throughput|server|errors'; }

date -u +%F; uname -sr; grep -m1 'model name' /proc/cpuinfo; nproc; git log -1 --format='commit %h'

echo "== 1: 10 M records, key and value the same 8 digits"
start -m 0; load --keys 10000000 --key-size 8 --value-size key; sleep 3; rss; stop
echo "== 2: 10 M records, 8-digit keys, 8 random bytes"
start -m 0; load --keys 10000000 --key-size 8 --value-size 8 --value-kind random; sleep 3; rss; stop
echo "== 3: -m 64, keys 1..N, 1-byte values"
start -m 64; load --keys 14000000 --key-size 0 --value-size 1; grep -E 'RssAnon|VmHWM' "/proc/$PID/status"
"$TODANA" stats -S "$ADDRESS" | grep -E '^(curr_items|evictions) '; stop
echo "== 4: churn"
start -m 0; python3 benches/churn.py "${ADDRESS##*:}" "$PID"; stop
echo "== 8: idle connections"
start -m 64 -c 12000; python3 benches/idle_connections.py "${ADDRESS##*:}" "$PID"; stop

if command -v memcached >/dev/null; then
    PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    for pipeline in 1 16; do
        echo "== 7: CPU time of a request against $(memcached -V), pipeline $pipeline"
        start -m 1024 -t 4
        memcached -u root -l 127.0.0.1 -p "$PORT" -U 0 -m 1024 -t 4 & MEMCACHED=$!
        sleep 0.5
        "$TODANA" bench "$ADDRESS" --vs "127.0.0.1:$PORT" --pid "$PID" --vs-pid "$MEMCACHED" --rounds 7 \
            --requests $((pipeline == 1 ? 400000 : 2000000)) --pipeline "$pipeline"
        stop
    done
else
    echo "== 7: skipped: memcached not found"
fi

echo "== 5 and 6: in process"
cargo bench --quiet -p todana-engine --bench mem_hash -- growth 20000000
cargo bench --quiet -p todana-engine --bench mem_hash -- speed 10000000
