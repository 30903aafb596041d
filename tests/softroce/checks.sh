# What the tests in lab hosts share: numbered checks, and comparing token ids.

checks_failed=0

# check WHAT COMMAND...: says "ok" or "FAILED", how long it took, and after a failure what the command said.
check() {
  local what=$1 start=$SECONDS output=/tmp/check.$BASHPID
  shift
  if "$@" >"$output" 2>&1; then
    echo "ok      $((SECONDS - start)) s  $what"
  else
    echo "FAILED  $((SECONDS - start)) s  $what: $*"
    tail -n 30 "$output" | sed 's/^/        /'
    checks_failed=$((checks_failed + 1))
  fi
}

# The last line of a host's command.
finish_checks() {
  echo "$checks_failed checks failed"
  return $((checks_failed != 0))
}

expect_failure() { ! "$@"; }

# token_ids FILE: of the JSON lines that `fastdecode generate --json` prints, one line a prompt.
token_ids() { grep -o '"token_ids":\[[0-9,]*\]' "$1"; }

# same_tokens EXPECTED_FILE COMMAND...: COMMAND succeeds and prints the token ids of EXPECTED_FILE. What it says on
# standard error is in $last_errors.
last_errors=/tmp/errors
same_tokens() {
  local expected=$1 actual=/tmp/actual.$BASHPID
  shift
  "$@" >"$actual" 2>"$last_errors" || { cat "$last_errors"; return 1; }
  token_ids "$expected" >"$actual.expected"
  token_ids "$actual" | diff "$actual.expected" -
}

# fails_saying TEXT COMMAND...: COMMAND fails, and TEXT is in what it says on standard error.
fails_saying() {
  local text=$1
  shift
  if "$@" 2>"$last_errors"; then return 1; fi
  cat "$last_errors"
  grep -qF "$text" "$last_errors"
}
