# What a command in a lab host may use (tests/softroce/lab sources this into every bash there).

# lab_nap SECONDS: sleeps without a process of its own, whose start takes an emulated processor longer than the nap: who
# waits must not slow down what is waited for.
lab_nap() { read -rt "$1" <>/run/silent || true; }

# lab_signal NAME: says to all hosts that the moment NAME has come.
lab_signal() { : >"/out/.at/$1"; }

# lab_wait NAME [SECONDS]: waits until somebody has said so, at most so long (default 120): then 1, with a message.
lab_wait() {
  local end=$((SECONDS + ${2:-120}))
  until [[ -e /out/.at/$1 ]]; do
    ((SECONDS < end)) || { echo "host $LAB_HOST waited ${2:-120} s for '$1' in vain" >&2; return 1; }
    lab_nap 0.1
  done
}

# lab_barrier NAME [SECONDS]: returns once all hosts have called it.
lab_barrier() {
  local h
  lab_signal "$1.$LAB_HOST"
  for ((h = 1; h <= LAB_HOSTS; h++)); do lab_wait "$1.$h" "${2:-120}" || return 1; done
}

# lab_power_off HOST: cuts its power, within about 0.1 s. Not one's own.
lab_power_off() { touch "/out/$1.off"; }

# lab_link up|down: this host's cable.
lab_link() { ip link set eth0 "$1"; }

# lab_filter udp|tcp PORT: drops what comes to that port of this host and what goes to that port of others, unseen by
# both ends, until lab_unfilter. RoCE is udp 4791.
lab_filter() {
  nft add table inet lab || return
  local hook
  for hook in input output; do
    nft add chain inet lab "$hook" "{ type filter hook $hook priority 0; }" &&
      nft add rule inet lab "$hook" "$1" dport "$2" drop || return
  done
}
lab_unfilter() { nft delete table inet lab; }

# lab_counters: the RDMA device's counters, one NAME VALUE a line.
lab_counters() {
  local file
  for file in /sys/class/infiniband/rxe0/ports/1/hw_counters/*; do
    [[ ${file##*/} == lifespan ]] || echo "${file##*/} $(cat "$file")"
  done
}

# lab_counter NAME: one of them.
lab_counter() { cat "/sys/class/infiniband/rxe0/ports/1/hw_counters/$1"; }

# lab_verbs_objects: how many QPs, MRs, CQs and PDs exist here, one "KIND COUNT" a line.
lab_verbs_objects() {
  local kind
  for kind in qp mr cq pd; do echo "$kind $(rdma resource show "$kind" 2>/dev/null | grep -c 'pid')"; done
}

# lab_eventually SECONDS COMMAND...: until COMMAND succeeds, at most so long; 1 if it never does.
lab_eventually() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || return 1
    lab_nap 0.2
  done
}
