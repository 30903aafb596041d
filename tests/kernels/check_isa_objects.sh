#!/bin/sh
# Usage: check_isa_objects.sh OBJECT...
# An object compiled for an ISA (avx*) must define no weak function: the linker keeps one copy of such a function for the
# whole program, and on a CPU without that ISA it would be an illegal instruction in code that never asked for it.
status=0
checked=0
for object in "$@"; do
  case $(basename "$object") in
    avx*) ;;
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
