#!/usr/bin/env bash
# usage: latency.sh BUILD [ALTERNATIONS]: a figure for the docs, not a test. In one emulated host, through its own RDMA
# device: `latency fabric` and bare_ping_pong in turn, both ends on cores of their own, and perftest beside them. (On
# two hosts the machine has more emulated cores than real ones, and the figures say more about that than about either.)
# Printed: round trips in us, and what ours take in relation to the bare ones of the same turn.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$(cd "$1" && pwd) turns=${2:-8}
program=$build/tools/fastdecode
rounds=500
address=10.77.0.1

in_host() {
  local turn size tool secret=/tmp/secret
  (umask 077; head -c 32 /dev/urandom | base64 >$secret)
  "$program" latency fabric --listen $address:7472 --secret-file $secret --cores 1 2>/tmp/far.log &
  for ((turn = 0; turn < turns; turn++)); do
    taskset -c 1 "$build/tests/softroce/bare_ping_pong" --listen 7473 &
    taskset -c 0 "$build/tests/softroce/bare_ping_pong" --connect $address:7473 --round-trips $rounds --json \
      >"/out/bare.$turn"
    wait $!
    "$program" latency fabric --peer $address:7472 --secret-file $secret --cores 0 --bytes-min 64 --bytes-max 65536 \
      --rounds $rounds --json >"/out/fabric.$turn"
  done
  for size in 64 4096 65536; do
    for tool in ib_write_lat ib_send_lat ib_write_bw; do
      taskset -c 1 $tool -d rxe0 -x 1 -F -s $size -n $rounds >/dev/null 2>&1 &
      sleep 1
      echo "== $tool, $size bytes"
      taskset -c 0 $tool -d rxe0 -x 1 -F -s $size -n $rounds $address 2>&1 | grep -A1 '^ #bytes' || true
      wait $! || true
    done
  done >/out/perftest
}

table() {
  python3 - "$1" "$turns" <<'EOF'
import json, statistics, sys
folder, turns = sys.argv[1], int(sys.argv[2])
bare = [json.load(open(f"{folder}/bare.{turn}")) for turn in range(turns)]
ours = [json.load(open(f"{folder}/fabric.{turn}")) for turn in range(turns)]
print(ours[0]["peer"])
print(f"{'bytes':>6} {'bare min':>9} {'p50':>8} {'ours min':>9} {'p50':>8} {'min/min':>8} {'p50/p50':>8}  of each turn")
for size in [64 << i for i in range(11)]:
    theirs = [next(r["round_trip_us"] for r in run["sizes"] if r["bytes"] == size) for run in bare]
    rows = [next(r for r in run["rows"] if r["shape"] == "one-way" and r["bytes"] == size) for run in ours]
    low, mine = min(t["min"] for t in theirs), 2 * min(r["min_us"] for r in rows)
    ratios = sorted(2 * r["p50_us"] / t["p50"] for r, t in zip(rows, theirs))
    p50, my_p50 = statistics.median(t["p50"] for t in theirs), statistics.median(2 * r["p50_us"] for r in rows)
    print(f"{size:6} {low:9.1f} {p50:8.1f} {mine:9.1f} {my_p50:8.1f} {mine / low:8.2f} {statistics.median(ratios):8.2f}"
          f"  {ratios[0]:.2f} to {ratios[-1]:.2f}")
for row in ours[-1]["rows"]:
    if row["shape"] == "bulk" and row["bytes"] >= 4096:
        print(f"bulk {row['bytes']:6} {row['p50_us']:8.1f} us {row['gb_per_s']:.3f} GB/s")
EOF
  cat "$1/perftest"
}

if [[ -n ${LAB_HOST:-} ]]; then
  in_host
else
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
  "$here/lab" run --nodes 1 --cpus 2 --mem 1024 --timeout 900 --out "$out" "bash '$here/latency.sh' '$build' $turns"
  table "$out"
fi
