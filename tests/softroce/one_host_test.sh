#!/usr/bin/env bash
# usage: one_host_test.sh BUILD ROOT: the homes of a host with two NUMA nodes (an emulated one: AVX2, one core a node).
# The token ids must be those that this machine computes itself, with one home; every page of a home must be on its node,
# as the kernel says from outside the process; and the tests of topology, arenas and core plans must pass where there are two nodes,
# those of the verbs link where there is an RDMA device.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/checks.sh"

build=$1 root=$2
model=$root/tools/demo_model/model
hop_timeout_ms=60000  # a busy machine may let a home's threads stand still for 10 seconds
prompts=(-p 'Once upon a time' -p 'Anna' -p 'One day' -p 'There was a')

# generate OPTION...: one JSON line a prompt, greedy, float32.
generate() {
  "$build/tools/fastdecode" generate -q -m "$model" --exact --temperature 0 --hop-timeout-ms $hop_timeout_ms --json \
    "${prompts[@]}" "$@"
}

# pages_at_home PID MIB: every page that the process has bound to a node is there, and at least MIB on each of the two.
pages_at_home() {
  awk -v mib="$2" '
    match($2, /^bind:[0-9]+$/) {
      node = substr($2, 6)
      for (i = 3; i <= NF; ++i) {
        if ($i !~ /^N[0-9]+=/) continue
        split(substr($i, 2), part, "=")
        if (part[1] == node) pages[node] += part[2]
        else { print part[2] " pages at " $1 ", bound to node " node ", are on node " part[1]; wrong = 1 }
      }
    }
    END {
      for (node = 0; node < 2; ++node) {
        printf "node %d: %d MiB of it as asked\n", node, pages[node] / 256
        if (pages[node] < mib * 256) wrong = 1
      }
      exit wrong
    }' "/proc/$1/numa_maps"
}

start_worker() {  # it yields: it cannot know that an engine will want its two cores, too
  "$build/tools/fastdecode" worker --listen unix:/run/w.sock --kv-gib 0.02 --poll yield >/tmp/worker.log 2>&1 &
  worker=$!
  lab_eventually 60 grep -q 'listening' /tmp/worker.log
}
both_serve() { [[ $(grep -c 'serves engine' /tmp/worker.log) == 2 ]]; }

bench_memory() { "$build/tools/fastdecode" bench memory --gib 0.02 --repetitions 1 | tee /tmp/memory; }

# None of them skipped, as they are where there is no device.
verbs_device_test() {
  "$build/tests/rdma/verbs/rdma_verbs_device_test" --gtest_brief=1 >/tmp/verbs_device && ! grep SKIPPED /tmp/verbs_device
}

in_guest() {
  local worker engine
  check 'two homes of this process generate what one home does elsewhere' \
    same_tokens /out/expected.json generate -n 12 --homes local --kv-gib 0.02 --report
  check 'S-Part and homes share the cores of both nodes' grep -q '^S-Part: 2 threads on cores 0-1$' "$last_errors"
  check 'as the default says' grep -q '^core plan: shared, 1 micro-batch (--core-plan auto' "$last_errors"
  check 'home 0 is on node 0, and the kernel has verified it' grep -E '^home 0: local, node 0.* on node 0 \(verified\)' "$last_errors"
  check 'home 1 is on node 1, and the kernel has verified it' grep -E '^home 1: local, node 1.* on node 1 \(verified\)' "$last_errors"
  check 'AVX2 was chosen for S-Part and homes' test "$(grep -cE '^(S-Part|home [01]): .*avx2' "$last_errors")" == 3

  check 'cores that are split generate the same' \
    same_tokens /out/expected.json generate -n 12 --homes local --kv-gib 0.02 --core-plan split --report
  check 'and S has one of them' grep -q '^S-Part: 1 thread on cores 0$' "$last_errors"

  check 'a worker starts' start_worker
  mkfifo /tmp/orders  # the engine lives as long as somebody may write to it
  "$build/tests/softroce/engine_shell" "model=$model" homes=unix:/run/w.sock hop-timeout-ms=$hop_timeout_ms </tmp/orders \
    >/tmp/engine.log 2>&1 &
  engine=$!
  exec 7>/tmp/orders
  echo '12 Once upon a time' >&7
  check 'it serves an engine with both homes' lab_eventually 60 both_serve
  check 'all pages of its homes are on their nodes' pages_at_home "$worker" 20
  check 'which it served meanwhile' kill -0 "$engine"
  exec 7>&-
  check 'the engine ends well' wait "$engine"
  check 'two homes of a worker generate the same' same_tokens /out/expected.json generate -n 12 --homes unix:/run/w.sock
  migratepages "$worker" 1 0
  check 'pages that were moved away are noticed' expect_failure pages_at_home "$worker" 20
  kill "$worker"

  check 'bench memory measures each node from each' bench_memory
  check 'near it is, where it is near' test "$(grep -cE '^([01]) +\1 +near ' /tmp/memory)$(grep -cE '^(0 +1|1 +0) +far ' /tmp/memory)" == 66
  check 'the tests of topology, arenas and core plans pass here' "$build/tests/numa/numa_machine_test" --gtest_brief=1
  check 'the tests of the verbs link pass with this RDMA device' verbs_device_test
  finish_checks
}

if [[ -n ${LAB_HOST:-} ]]; then
  in_guest
else
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
  generate -n 12 --homes local:1 >"$out/expected.json"
  status=0
  "$here/lab" run --timeout 280 --out "$out" "$(printf '%q ' bash "$here/one_host_test.sh" "$build" "$root")" || status=$?
  cat "$out/1.log" 2>/dev/null || true
  exit $status
fi
