#!/bin/sh
# Usage: check_isa_objects.sh OBJECT...
# An object compiled for an ISA (avx*, amx*) must define no weak function: the linker keeps one copy of such a function
# for the whole program, and on a CPU without that ISA it would be an illegal instruction in code that never asked for
# it. Instructions on tiles are in those for AMX and in the loops that these are compared with, each of which has some,
# and in no other.
status=0
checked=0
for object in "$@"; do
  tiles=$(objdump -d --no-show-raw-insn "$object" | grep -cE '[[:space:]](tdp[a-z0-9]+|tileload[a-z0-9]*)[[:space:]]')
  case $(basename "$object") in
    amx* | dot_loop*) expected=some ;;
    *) expected=none ;;
  esac
  found=$([ "$tiles" -gt 0 ] && echo some || echo none)
  if [ "$found" != "$expected" ]; then
    echo "$object has $tiles instructions on tiles, expected are $expected"
    status=1
  fi
  case $(basename "$object") in
    avx* | amx*) ;;
    *) continue ;;
  esac
  checked=$((checked + 1))
  weak=$(nm -C --defined-only "$object" | grep -E '^[0-9a-f]* [Wu] ')
  if [ -n "$weak" ]; then
    echo "$object defines weak functions:"
    echo "$weak"
    status=1
  fi
done
echo "$checked objects checked"
[ "$checked" -gt 0 ] || status=1
exit $status
