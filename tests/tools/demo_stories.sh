#!/usr/bin/env bash
# usage: demo_stories.sh PROGRAM ROOT: 200 stories of the demo model, sampled through the whole pipeline; at least 95 % must
# parse under the grammar that it was trained on, so that a wrong pipeline is visible as broken text.
set -euo pipefail
program=$1
root=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
yes '' | head -n 200 >"$work/prompts" || true
"$program" generate -q --model "$root/tools/demo_model/model" --prompts-file "$work/prompts" --json --max-tokens 400 \
  --temperature 0.8 --top-p 0.95 --seed 1 --hop-timeout-ms 60000 >"$work/stories.jsonl"
[ "$(wc -l <"$work/stories.jsonl")" -eq 200 ]
python3 "$root/tools/demo_model/grammar.py" check "$work/stories.jsonl" --min-share 0.95
