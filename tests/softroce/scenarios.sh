#!/usr/bin/env bash
# usage: scenarios.sh NAME BUILD ROOT: an engine on host 1, workers on the others, and what NAME does to them.
# In each host this file runs again: host 1 calls engine_NAME, the others worker_NAME, or serve where there is none.
#   same_tokens_two_hosts same_tokens_three_hosts                    what this machine generates by itself
#   netem_loss_1 netem_loss_5 netem_reorder netem_duplicate netem_corrupt   the same over a bad wire
#   sigkill sigstop link_down port_filtered power_off                found out in time, others unharmed, usable again
#   drain                                                            told to end under load, and replaced; nothing is lost
#   late_worker                                                      started without a worker, which comes later
#   kill_and_return engine_kill_and_return                           50 times, nothing leaks
#   door_refusals                                                    bad visitors while an engine is served
#   slow_wire                                                        `latency step` blames the link, and not the home
#   gpu_direct                                                       the S-Part on a GPU in software, whose memory the RDMA device reaches
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/checks.sh"

name=$1 build=$2 root=$3
program=$build/tools/fastdecode
model=$root/tools/demo_model/model
secret=/tmp/secret
port=7471
hop_timeout_ms=60000  # no home of this process is lost by threads that a busy machine lets stand still
peer_timeout_ms=2000
homes=$(find /sys/devices/system/node -maxdepth 1 -name 'node[0-9]*' | wc -l)  # of one worker
slack_ms=20000  # what finding out may take beyond the peer's timeout
cycles=${CYCLES:-50}
prompts=('Once upon a time' 'Anna' 'One day' 'There was a' 'Ben had a' 'The')
# With more than a page, which a GPU computes and pushes home; several, so that not all of them live on the GPU.
if [[ $name == gpu_direct ]]; then
  story='Once upon a time there was a little girl named Anna. She had a big red ball, and every day she went to the park '
  story+='with her dog and threw the ball as far as she could. One day the ball'
  prompts=('Anna' "$story" "$story fell" "$story was gone" "$story and the dog")
fi

# ---- the lab of each scenario

# Sets hosts and options.
plan_lab() {
  hosts=2 options=(--timeout 280)
  case $1 in
    same_tokens_three_hosts) hosts=3;;
    netem_loss_1) options+=(--netem 'loss 1%');;
    netem_loss_5) options+=(--netem 'loss 5%');;
    netem_reorder) options+=(--netem 'delay 10ms reorder 75%');;  # emulated, packets of a hop are milliseconds apart
    netem_duplicate) options+=(--netem 'duplicate 10%');;
    netem_corrupt) options+=(--netem 'corrupt 2%');;
    # One processor a host: each has a thread that polls, and two of this machine's could not run four of theirs at once.
    slow_wire) options+=(--nodes 1 --mem 1536 --packets first);;
    *kill_and_return) options=(--timeout 1500);;
  esac
}

# ---- workers

start_worker() {
  "$program" worker --listen "0.0.0.0:$port" --secret-file $secret --kv-gib 0.02 --poll yield \
    --peer-timeout-ms $peer_timeout_ms >/tmp/worker.log 2>&1 &
  worker=$!
  lab_eventually 90 grep -q listening /tmp/worker.log || { cat /tmp/worker.log; return 1; }
}
kill_worker() { kill -9 "$worker"; wait "$worker" || true; } 2>/dev/null
stop_worker() { kill -TERM "$worker" && wait "$worker"; }
no_verbs_objects() { lab_verbs_objects && ! lab_verbs_objects | grep -qv ' 0$'; }

# serve [COMMAND...]: a worker for as long as the engine's host wants it; COMMAND is what happens meanwhile.
serve() {
  check 'the worker starts' start_worker
  lab_signal "worker.$LAB_HOST"
  (($# == 0)) || "$@"
  lab_wait done 1200
  check 'the worker ends well' stop_worker
  check 'it leaves no verbs object behind' no_verbs_objects
}

# ---- the engine

await_workers() { local h; for ((h = 2; h <= LAB_HOSTS; h++)); do lab_wait "worker.$h" || return; done; }
fabric_homes() { local h list=''; for ((h = 2; h <= LAB_HOSTS; h++)); do list+=,10.77.0.$h:$port; done; echo "${list#,}"; }

generate() {  # generate TOKENS OPTION...: for each prompt, as JSON
  local tokens=$1 arguments=() prompt
  shift
  for prompt in "${prompts[@]}"; do arguments+=(-p "$prompt"); done
  "$program" generate -q -m "$model" --exact --temperature 0 --ignore-eos -n "$tokens" --kv-gib 0.02 --poll yield \
    --hop-timeout-ms $hop_timeout_ms --json "${arguments[@]}" "$@"
}

same_tokens_over_fabric() {
  check 'the workers are there' await_workers
  check "the same tokens with homes $(fabric_homes)" \
    same_tokens /out/expected.json generate 12 --homes "$(fabric_homes)" --secret-file $secret --peer-timeout-ms 10000
}

# Nothing here tells the wire's losses from those of an overloaded emulation: the qdisc's own count does, where it has one.
recovered() {
  lab_counters
  tc -s qdisc show dev eth0
  local sum=0 counter
  for counter in "$@"; do sum=$((sum + $(lab_counter "$counter"))); done
  ((sum > 0))
}
dropped_by_wire() { tc -s qdisc show dev eth0 | grep -qE 'dropped [1-9]'; }

# An engine that lives on in the background; what it says is in $said.
said=/tmp/said
start_engine() {  # start_engine HOMES [OPTION=VALUE...]
  rm -f /tmp/orders
  mkfifo /tmp/orders
  "$build/tests/softroce/engine_shell" "model=$model" compute=f32 kv-gib=0.02 poll=yield "homes=$1" "secret-file=$secret" \
    "hop-timeout-ms=$hop_timeout_ms" "peer-timeout-ms=$peer_timeout_ms" "${@:2}" </tmp/orders >$said 2>&1 &
  engine=$!
  exec 7>/tmp/orders
  submitted=0
  lab_eventually 90 grep -q ' ready$' $said || { cat $said; return 1; }
}
end_engine() { exec 7>&-; wait "$engine"; }

submit_all() {  # submit_all TOKENS: a request for each prompt
  local prompt
  first=$submitted
  for prompt in "${prompts[@]}"; do echo "$1 $prompt" >&7; submitted=$((submitted + 1)); done
}
lines() { grep -cE "$1" $said || true; }
all_begun() { (($(lines '^first ') >= submitted)); }
all_ended() { (($(lines '^end ') >= submitted)); }
times_lost() { lines '^log [0-9.]+ home [0-9]+ .* was lost: '; }
times_back() { lines '^log .* is back$'; }
back_again() { (($(times_back) > 0)); }
# Every home of a worker that died, and not just the first of them.
all_back_again() { (($(times_lost) >= lost_before + homes && $(times_back) == $(times_lost))); }

# Those of the last submit_all that ended well have the token ids of $expected (one list a line, by prompt); prints "GOOD BAD".
expected=/out/expected
count_answers() {
  awk -v first="$first" '
    NR == FNR { right[FNR - 1] = $1; next }
    $1 == "end" && $2 >= first && $4 == "error" { ++bad }
    $1 == "end" && $2 >= first && $4 == "ok" { if (index(right[$2 - first] ",", $5 ",") == 1) ++good; else wrong = 1 }
    END { print good + 0, bad + 0; exit wrong }' $expected $said
}
all_right() { count_answers | grep -x "${#prompts[@]} 0"; }

# ---- faults: what host 2 does to itself, unless it is its power

strike() {
  case $name in
    sigkill) kill_worker;;
    sigstop) kill -STOP "$worker";;
    link_down) lab_link down;;
    port_filtered) lab_filter udp 4791;;
  esac
}
repair() {
  case $name in
    sigkill) start_worker;;
    sigstop) kill -CONT "$worker";;
    link_down) lab_link up;;
    port_filtered) lab_unfilter;;
  esac
}
strike_when_told() {
  [[ $name != power_off ]] || return 0
  lab_wait strike 240
  strike
  lab_signal struck
  lab_wait repair 240
  check 'the fault is mended' repair
  lab_signal repaired
}

# found_in_time SINCE MS: the first home was known to be lost no later than so long after SINCE (wall clock, s).
found_in_time() {
  awk -v since="$1" -v limit_ms="$2" '
    $1 == "log" && /home [0-9]+ .* was lost: / && !found { found = 1; ms = ($2 - since) * 1000; print ms " ms: " $0 }
    END { exit !found || ms > limit_ms }' $said
}
some_lost() { (($(times_lost) > 0)); }
losses_name_the_peer() { grep -E '^log .* was lost: ' $said | grep -q "10.77.0.2:$port"; }

fault() {
  local struck limit_ms=$((peer_timeout_ms + slack_ms))
  [[ $name != sigkill ]] || limit_ms=$slack_ms
  check 'the worker is there' await_workers
  # Each of four layers takes 20 ms, so that the requests run for 3 s on any machine.
  check 'the engine starts' start_engine "local:1,10.77.0.2:$port" fault=delay=1:20ms
  submit_all 40
  check 'all requests are on their way' lab_eventually 120 all_begun
  if [[ $name == power_off ]]; then lab_power_off 2; else lab_signal strike; lab_wait struck; fi
  struck=$EPOCHREALTIME
  check 'the home is lost' lab_eventually 60 some_lost
  check "that took no longer than $limit_ms ms" found_in_time "$struck" $limit_ms
  grep -m1 -E '^log .* was lost: ' $said || true
  check 'the log names the peer' losses_name_the_peer
  check 'all requests run to their ends' lab_eventually 120 all_ended
  check 'and are right' all_right
  if [[ $name != power_off ]]; then
    lab_signal repair
    lab_wait repaired 120
    check 'the worker is taken back' lab_eventually 60 back_again
    submit_all 4
    check 'all requests end' lab_eventually 120 all_ended
    check 'and are right' all_right
  fi
  check 'the engine ends well' end_engine
}

# ---- leaks

# footprint PID: what a process holds, and the host's verbs objects; descriptors by what they are.
footprint() {
  echo "descriptors $(ls "/proc/$1/fd" | wc -l) threads $(ls "/proc/$1/task" | wc -l) $(lab_verbs_objects | tr '\n' ' ')"
  find "/proc/$1/fd" -type l -printf '%l\n' | sed 's/:\[[0-9]*\]$//' | sort | uniq -c
}
# links PID: how many verbs links a process has, lost ones that are not destroyed yet included: each opens the device.
links() { find "/proc/$1/fd" -lname '/dev/infiniband/uverbs*' | wc -l; }

# A lost link is destroyed by a thread that nobody waits for, and a request's thread lives a little longer than its last
# line: what a process holds is looked at when its living links are all that it has, and nothing changes any more.
settled() {  # settled PID LINKS: leaves the footprint in $held
  held=$(footprint "$1")
  [[ $(links "$1") == "$2" ]] && lab_nap 1 && [[ $(footprint "$1") == "$held" ]]
}
settles() { lab_eventually 60 settled "$@" || { echo "not $2 links, or still changing:"; echo "$held"; return 1; }; }
same_footprint() { [[ -n $1 && $1 == "$2" ]]; }  # a failed check says its arguments

# ---- scenarios

engine_same_tokens_two_hosts() { same_tokens_over_fabric; lab_counters; }
engine_same_tokens_three_hosts() { same_tokens_over_fabric; }
engine_netem_loss_1() { same_tokens_over_fabric; check 'packets were lost' dropped_by_wire; }
engine_netem_loss_5() {
  engine_netem_loss_1
  check 'the device sent again' recovered completer_retry_err rcvd_seq_err out_of_seq_request
}
engine_netem_reorder() { same_tokens_over_fabric; check 'the device saw it' recovered out_of_seq_request rcvd_seq_err; }
engine_netem_duplicate() { same_tokens_over_fabric; check 'the device saw it' recovered duplicate_request; }
engine_netem_corrupt() {
  same_tokens_over_fabric
  check 'the device sent again' recovered completer_retry_err rcvd_seq_err out_of_seq_request
}

for fault_name in sigkill sigstop link_down port_filtered power_off; do
  eval "engine_$fault_name() { fault; }; worker_$fault_name() { serve strike_when_told; }"
done

# The worker is told to end while requests run, and a new one takes its place.
homes_have_ended() { (($(lines '^log [0-9.]+ home [0-9]+ .* has ended: ') >= homes)); }
engine_drain() {
  check 'the worker is there' await_workers
  check 'the engine starts' start_engine "local:1,10.77.0.2:$port" fault=delay=1:20ms
  submit_all 40
  check 'all requests are on their way' lab_eventually 120 all_begun
  lab_signal drain
  check 'all requests run to their ends' lab_eventually 120 all_ended
  check 'and are right' all_right
  check 'the worker ends when it has none of them any more' lab_wait drained 120
  check 'the log says that its homes have ended' lab_eventually 60 homes_have_ended
  check 'and none was lost' test "$(times_lost)" = 0
  lab_signal replace
  lab_wait replaced 120
  check 'the next worker is used' lab_eventually 60 back_again
  submit_all 4
  check 'all requests end' lab_eventually 120 all_ended
  check 'and are right' all_right
  check 'the engine ends well' end_engine
}
drain_when_told() {
  lab_wait drain 240
  check 'the worker ends well' stop_worker
  lab_signal drained
  lab_wait replace 240
  check 'there is a new one' start_worker
  lab_signal replaced
}
worker_drain() { serve drain_when_told; }

# Beside the worker, another one on its host. At the first start it is silent, and needed: the links to the others live while
# it is waited for. At the second one it is not there, and comes later.
second_port=7472
none_lost() { (($(times_lost) == 0)); }
late_has_come() { (($(lines "^log .*10.77.0.2:$second_port, home [0-9]+\\) has come$") == homes)); }
engine_late_worker() {
  local all="local:1,10.77.0.2:$port,10.77.0.2:$second_port"
  check 'the workers are there' await_workers
  lab_signal start.1
  check 'the engine starts when the silent one answers' start_engine "$all" homes-min=3
  check 'no home was lost meanwhile' none_lost
  check 'the engine ends well' end_engine
  lab_signal leave
  lab_wait left 60
  check 'fewer than are needed are an error' \
    fails_saying "homes-min: 3 of --homes must be there, and 2 of 3 are; not there: 10.77.0.2:$second_port" \
    generate 12 --homes "$all" --homes-min 3 --secret-file $secret
  check 'the engine starts without it' start_engine "$all" homes-min=2
  check 'and says so' grep -q "home [0-9]* (10.77.0.2:$second_port) has not come yet: no worker to be reached" $said
  submit_all 40
  lab_signal come
  check 'all requests end' lab_eventually 120 all_ended
  check 'all of its homes are taken in' lab_eventually 120 late_has_come
  submit_all 40
  check 'all requests end' lab_eventually 120 all_ended
  check 'and are right' all_right
  check 'no home was lost' none_lost
  check 'the engine ends well' end_engine
}
start_second() {
  "$program" worker --listen "0.0.0.0:$second_port" --secret-file $secret --kv-gib 0.02 --poll yield \
    --peer-timeout-ms $peer_timeout_ms >/tmp/second.log 2>&1 &
  second=$!
  lab_eventually 90 grep -q listening /tmp/second.log || { cat /tmp/second.log; return 1; }
}
silent_then_late() {
  check 'another worker starts' start_second
  kill -STOP "$second"
  lab_signal "worker.$LAB_HOST"
  lab_wait start.1 240
  lab_nap 5
  kill -CONT "$second"
  lab_wait leave 240
  kill -9 "$second"
  wait "$second" 2>/dev/null || true
  lab_signal left
  lab_wait come 240
  check 'the other worker comes' start_second
  lab_wait done 600
  kill -TERM "$second"
  check 'it ends well' wait "$second"
}
worker_late_worker() {
  check 'the worker starts' start_worker
  silent_then_late
  check 'the worker ends well' stop_worker
  check 'it leaves no verbs object behind' no_verbs_objects
}

# The worker dies again and again; the engine lives on.
engine_kill_and_return() {
  local i before='' held=''
  check 'the worker is there' await_workers
  check 'the engine starts' start_engine "local:1,10.77.0.2:$port"
  for ((i = 1; i <= cycles; i++)); do
    lost_before=$(times_lost)
    submit_all 40
    lab_eventually 120 all_begun || break
    lab_signal "kill.$i"
    lab_eventually 120 all_ended || break
    lab_eventually 120 all_back_again || break
    ((i == 2)) || continue
    check 'after the second time the living links are all that it has' settles "$engine" "$homes"
    before=$held
  done
  check "$cycles times lost and taken back" test $i -gt "$cycles"
  check 'the living links are all that it has' settles "$engine" "$homes"
  check 'the engine holds as much as after the second time' same_footprint "$before" "$held"
  submit_all 20
  check 'all requests end' lab_eventually 120 all_ended
  check 'and are right' all_right
  check 'the engine ends well' end_engine
}
die_again_and_again() {
  local i
  for ((i = 1; i <= cycles; i++)); do
    lab_wait "kill.$i" 300 || break
    kill_worker
    start_worker || break
  done
  check "killed and started $cycles times" test $i -gt "$cycles"
}
worker_kill_and_return() { serve die_again_and_again; }

# The engine dies again and again; the worker lives on, and tells what it holds.
engine_engine_kill_and_return() {
  local i
  check 'the worker is there' await_workers
  for ((i = 1; i <= cycles; i++)); do
    start_engine "10.77.0.2:$port" || break
    submit_all 300
    lab_eventually 120 all_begun || break
    lab_wait "serving.$i" 120 || break
    kill -9 "$engine"
    wait "$engine" 2>/dev/null || true
    exec 7>&-
    lab_signal "gone.$i"
    lab_wait "free.$i" 120 || break
  done
  check "$cycles engines killed" test $i -gt "$cycles"
  check 'the next one is served' same_tokens /out/expected.json generate 12 --homes "10.77.0.2:$port" --secret-file $secret
}
times_in_log() { (($(grep -c "$1" /tmp/worker.log) >= $2)); }
outlive_engines() {
  local i before='' held=''
  for ((i = 1; i <= cycles; i++)); do
    lab_eventually 120 times_in_log ' serves engine .* pages,' $((homes * i)) || break
    lab_signal "serving.$i"
    lab_wait "gone.$i" 120 || break
    lab_eventually 60 times_in_log ' no longer serves engine ' $((homes * i)) || break
    if ((i == 2 || i == cycles)); then  # before the next engine comes
      check "after engine $i it has no links" settles "$worker" 0
      ((i != 2)) || before=$held
    fi
    lab_signal "free.$i"
  done
  check "$cycles engines outlived" test $i -gt "$cycles"
  check 'the worker holds as much as after the second engine' same_footprint "$before" "$held"
}
worker_engine_kill_and_return() { serve outlive_engines; }

# Visitors that must be refused, while an engine is served.
knock() { timeout 5 bash -c "exec 3<>/dev/tcp/10.77.0.2/$port; $1" 2>/dev/null || true; }
engine_door_refusals() {
  local i slow=()
  check 'the worker is there' await_workers
  check 'the engine starts' start_engine "local:1,10.77.0.2:$port"
  submit_all 150
  check 'all requests are on their way' lab_eventually 120 all_begun
  for ((i = 0; i < 5; i++)); do knock 'head -c 4096 /dev/urandom >&3'; done
  for ((i = 0; i < 20; i++)); do knock 'true'; done
  for ((i = 0; i < 5; i++)); do (exec 3<>"/dev/tcp/10.77.0.2/$port"; sleep 20) & slow+=($!); done
  (umask 077; echo 'another secret, of some length' >/tmp/wrong)
  check 'a wrong secret is refused' \
    fails_saying 'refused the link: wrong secret' generate 24 --homes "10.77.0.2:$port" --secret-file /tmp/wrong
  check 'a second engine is refused' \
    fails_saying 'already serves 1 engine' generate 24 --homes "10.77.0.2:$port" --secret-file $secret
  check 'all requests end' lab_eventually 120 all_ended
  check 'and are right' all_right
  kill "${slow[@]}" 2>/dev/null || true
  check 'the engine ends well' end_engine
}
worker_door_refusals() { serve; cat /tmp/worker.log; }

# What the worker sends takes longer from some moment on: said of its link, by that much more than before, while the home
# behind it takes no longer. One hop is under way at a time: what emulated hosts need to post several is as long as the delay.
wire_delay_ms=2
latency_step() {  # latency_step NAME
  "$program" latency step -q -m "$model" --homes "10.77.0.2:$port" --secret-file $secret --poll yield --fill \
    --micro-batches 1 --concurrency 1 --prompt-tokens 16-64 --output-tokens 50-100 --warmup-seconds 3 --seconds 15 \
    --hop-timeout-ms $hop_timeout_ms --peer-timeout-ms 10000 --save "/tmp/$1.json"
}
findings() {  # findings NAME: phase, kind, ms, line
  python3 -c '
import json, sys
for f in json.load(open(f"/tmp/{sys.argv[1]}.json"))["findings"]:
    print(f["phase"], f["kind"], f["amount"] / 1e6, f["line"])' "$1"
}
usual_ms() {  # usual_ms NAME PHASE...: of a hop, what these phases take together
  python3 -c '
import json, sys
name, *wanted = sys.argv[1:]
phases = json.load(open(f"/tmp/{name}.json"))["phases"]
print(sum(phase["distribution"]["p50_ns"] for phase in phases if phase["name"] in wanted) / 1e6)' "$@"
}
usual_ms_of_home() { usual_ms "$1" queue prepare append attend merge team; }
slow_down() { lab_signal slow && lab_wait slower; }
link_slower_ms() { findings "$1" | awk '$1 == "wire" && $2 == "slower" { print $3 }'; }  # nothing: not blamed
link_blamed() {
  awk -v delay=$wire_delay_ms -v before="$(usual_ms before wire)" -v after="$(link_slower_ms after)" 'BEGIN {
    more = after - before
    print "the link takes " after " ms, " more " ms more than before"
    exit !(after != "" && more > 0.85 * delay && more < 1.15 * delay)
  }' >>/tmp/blame
}
link_not_blamed() { awk -v blamed="$(link_slower_ms before)" -v delay=$wire_delay_ms 'BEGIN { exit !(blamed < delay) }'; }
home_not_blamed() {
  awk -v delay=$wire_delay_ms -v before="$(usual_ms_of_home before)" -v after="$(usual_ms_of_home after)" 'BEGIN {
    more = after - before
    print "the home takes " after " ms, " more " ms more than before"
    exit !(before > 0 && more < 0.15 * delay)
  }' >>/tmp/blame
}
engine_slow_wire() {
  check 'the worker is there' await_workers
  check 'its home is recorded' latency_step before
  check 'the wire is slowed down' slow_down
  check 'and it is recorded again' latency_step after
  findings before
  findings after
  check 'before, its link is not to blame for as much' link_not_blamed
  check 'then it is, for the delay' link_blamed
  check 'and the home behind it is not' home_not_blamed
  cat /tmp/blame
}
slow_down_when_asked() {
  lab_wait slow 240
  check 'what it sends takes longer' tc qdisc add dev eth0 root netem delay ${wire_delay_ms}ms
  lab_signal slower
}
worker_slow_wire() { serve slow_down_when_asked; }

# CUDA's driver is one in software, too: it gives the RDMA device what it says is the GPU's memory, as with nvidia_peermem,
# and asks for a flush after each reply. Once with all KV at the worker, once with the GPU as a home beside it.
pretend_peermem() { mount -t tmpfs none /sys/module && mkdir /sys/module/nvidia_peermem; }
start_on_gpu() {  # start_on_gpu HOMES [OPTION=VALUE...]
  LD_LIBRARY_PATH=$build/tests/rdma/gpu/soft_libcuda start_engine "$1" spart=cuda gpudirect=true "${@:2}" \
    "cuda-module=$build/tests/engine/spart/libfastdecode_soft_gpu.so" gpu-wait-ms=120000
}
gpu_answers() {
  submit_all 4
  lab_eventually 200 all_ended && all_right
}
engine_gpu_direct() {
  check 'the worker is there' await_workers
  check 'what the kernel says of its modules is made up' pretend_peermem
  check 'an engine on a GPU starts' start_on_gpu "10.77.0.2:$port"
  check "q, k, v and o lie in the GPU's memory" \
    grep -q 'link to 10.77.0.2.*; payload by peermem; the GPU sees the device.s writes after a flush a reply' $said
  check 'its answers are right' gpu_answers
  check 'it ends well' end_engine
  check 'the GPU is a home, too' start_on_gpu "gpu,10.77.0.2:$port" gpu-kv-gib=0.02
  check 'the answers are right' gpu_answers
  check 'it ends well' end_engine
  check 'prompts were pushed home' grep -q '"pushed_bytes":[1-9]' $said
}

# ---- in a host, and outside

if [[ -n ${LAB_HOST:-} ]]; then
  (umask 077; echo 'what the hosts of this lab know' >$secret)
  if ((LAB_HOST == 1)); then
    trap 'lab_signal done' EXIT  # the workers do not wait for an engine that failed
    "engine_$name"
  elif declare -F "worker_$name" >/dev/null; then
    "worker_$name"
  else
    serve
  fi
  finish_checks
else
  declare -F "engine_$name" >/dev/null || { echo "scenarios.sh: no scenario $name" >&2; exit 2; }
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
  generate 150 --homes local:1 | token_ids - | grep -o '[0-9][0-9,]*' >"$out/expected"
  generate 12 --homes local:1 >"$out/expected.json"
  plan_lab "$name"
  command="CYCLES=$cycles $(printf '%q ' bash "$here/scenarios.sh" "$@")"
  commands=()
  for ((h = 0; h < hosts; h++)); do commands+=("$command"); done
  status=0
  "$here/lab" run "${options[@]}" --out "$out" "${commands[@]}" || status=$?
  for ((h = 1; h <= hosts; h++)); do [[ ! -f $out/$h.log ]] || { echo "== host $h"; cat "$out/$h.log"; }; done
  exit $status
fi
