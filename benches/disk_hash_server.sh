#!/usr/bin/env bash
# What does a get cost on a server whose records are on disk and completely in the page cache,
# compared with a server that has them in memory? Measures the CPU time of both server processes,
# which run in turns, with 50 connections: without a pipeline, to which the bar applies, and with a
# pipeline of 16 requests; with small and larger records. Needs a release build. The servers run on
# loopback on ports that the system chooses, and are stopped at the end. The hash is written to a
# new folder in TMPDIR (default /var/tmp).
# Usage: benches/disk_hash_server.sh [TODANA]        ROUNDS=7 REQUESTS=400000
set -euo pipefail
cd "$(dirname "$0")/.."
TODANA=${1:-${CARGO_TARGET_DIR:-target}/release/todana}
SCRATCH=$(mktemp -d -p "${TMPDIR:-/var/tmp}" disk-hash-XXXXXX)
PIDS=()
stop() { for pid in "${PIDS[@]}"; do kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true; done; PIDS=(); }
trap 'stop; rm -rf "$SCRATCH"' EXIT

# start NAME DATABASE: starts a server. $ADDRESS becomes its address, and the last of $PIDS its
# process.
start() {
    "$TODANA" serve -p -1 -m 0 -t 4 --admin-port 0 "$2" >"$SCRATCH/$1" & PIDS+=($!)
    for _ in $(seq 100); do grep -q '^try' "$SCRATCH/$1" && break; sleep 0.1; done
    ADDRESS=$(sed -n 's/^listening on //p' "$SCRATCH/$1")
}

# compare WHAT KEYS VALUE_SIZE: measures both servers with the same records.
compare() {
    local what=$1 keys=$2 size=$3 on_disk in_memory
    start disk "$SCRATCH/$what.hash"; on_disk=$ADDRESS
    start memory mem:hash; in_memory=$ADDRESS
    local records=(--keys "$keys" --value-size "$size" --value-kind random)
    for server in "$on_disk" "$in_memory"; do
        "$TODANA" bench "$server" --load-only --pipeline 64 "${records[@]}" >/dev/null
    done
    for pipeline in 1 16; do
        echo "== $what: $keys records, values of $size bytes, pipeline $pipeline: the hash on disk, then the one in memory"
        "$TODANA" bench "$on_disk" --vs "$in_memory" --pid "${PIDS[0]}" --vs-pid "${PIDS[1]}" --cold --ratio 1:0 \
            --rounds "${ROUNDS:-7}" --requests $((${REQUESTS:-400000} * (pipeline == 1 ? 1 : 4))) --pipeline "$pipeline" "${records[@]}"
    done
    stop
    rm -rf "$SCRATCH/$what.hash"
}

date -u +%F; uname -sr; grep -m1 'model name' /proc/cpuinfo; nproc; git log -1 --format='commit %h'
compare small 2000000 8
compare large 500000 400
