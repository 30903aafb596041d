#!/usr/bin/env python3
"""That the public headers promise what they promised: to the byte what struct_layout.txt says, and to programs that
were compiled when this ABI began, nothing less.

usage: check_layout.py [--update] [--compiler CC] REPOSITORY_ROOT
struct_layout.txt beside this file has every struct's size, every field's offset, size and type, every constant's value,
and every function. It is there so that nobody changes one without meaning to; --update writes it anew. Against the
frozen headers beside it there is no update: structs with a struct_size may grow at their end, names may be added, and
everything else stays as it is for as long as FD_ABI_VERSION does.
"""
import argparse
import difflib
import pathlib
import sys

import interface_layout

HERE = pathlib.Path(__file__).resolve().parent
LIST = HERE / "struct_layout.txt"
# Each public header, and what programs saw of it.
HEADERS = {"fastdecode.h": "fastdecode_abi3.h", "fastdecode_bench.h": "fastdecode_bench_abi3.h"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--compiler", default="cc")
    parser.add_argument("root", type=pathlib.Path)
    arguments = parser.parse_args()
    include = arguments.root.resolve() / "engine/api"
    faults, lines = [], []
    folder = include / "fastdecode"
    faults += [f"{path.name}: nothing is known of this header; HEADERS in {pathlib.Path(__file__).name} names them all"
               for path in sorted(folder.glob("*.h")) if path.name not in HEADERS]
    for header, frozen in HEADERS.items():
        current = interface_layout.measure(folder / header, include, arguments.compiler)
        promised = interface_layout.measure(HERE / frozen, include, arguments.compiler)
        lines += [f"---- {header}", *current.lines()]
        faults += [f"{header}: {fault}" for fault in interface_layout.size_faults(current)]
        faults += [f"{header}: against {frozen}: {fault}"
                   for fault in interface_layout.growth_faults(promised, current)]
    if arguments.update:
        LIST.write_text("".join(f"{line.rstrip()}\n" for line in lines))
    listed = LIST.read_text().splitlines() if LIST.exists() else []
    difference = difflib.unified_diff(listed, [line.rstrip() for line in lines], LIST.name, "the headers", n=0,
                                      lineterm="")
    changed = [line for line in difference if not line.startswith("@@")]
    if changed:
        faults += [*changed, f"if that is meant: {sys.argv[0]} --update {arguments.root}"]
    for fault in faults:
        print(fault)
    print(f"{len(lines)} promises, {len(faults)} faults")
    return 1 if faults or len(lines) < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
