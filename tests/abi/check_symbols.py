#!/usr/bin/env python3
"""That libfastdecode.so shows the functions of the C interface, and nothing else, in the version of their ABI.

usage: check_symbols.py [--update] LIBRARY REPOSITORY_ROOT
What it shows is held against exported_symbols.txt beside this file, so that nobody takes a function away, or adds one,
without meaning to; --update writes that file anew.
"""
import argparse
import pathlib
import re
import subprocess
import sys

LIST = pathlib.Path(__file__).with_name("exported_symbols.txt")


def exported(library):
    """Names and versions of the dynamic symbols that are defined in the library, without the nodes of versions."""
    listing = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", library], check=True,
                             capture_output=True, text=True).stdout
    symbols, nodes = {}, set()
    for line in listing.splitlines():
        kind, symbol = line.split()[-2:]
        name, _, version = symbol.partition("@@")
        if kind == "A":
            nodes.add(name)
        else:
            symbols[name] = version
    return symbols, nodes


def soname(library):
    listing = subprocess.run(["readelf", "-dW", library], check=True, capture_output=True, text=True).stdout
    return re.search(r"\(SONAME\).*\[(.*)\]", listing).group(1)


def read_header(path):
    """Without comments, and without what is inlined where it is called."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", path.read_text(), flags=re.S)
    return re.sub(r"\bstatic\s+inline\b[^{]*\{.*?\n\}", " ", text, flags=re.S)


def declared(headers):
    """Functions: their names are followed by a parenthesis; those of pointers to functions are in one."""
    return {name for text in headers for name in re.findall(r"(?<!#define )(?<!\(\*)\b(fd_\w+)\s*\(", text)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--update", action="store_true")
    parser.add_argument("library")
    parser.add_argument("root", type=pathlib.Path)
    arguments = parser.parse_args()
    folder = arguments.root / "engine/api/fastdecode"
    headers = [read_header(path) for path in sorted(folder.glob("*.h"))]
    abi = re.search(r"#define FD_ABI_VERSION (\d+)", "".join(headers)).group(1)
    node = f"FASTDECODE_{abi}"

    symbols, nodes = exported(arguments.library)
    if arguments.update:
        LIST.write_text("".join(f"{name}\n" for name in sorted(symbols)))
    listed = LIST.read_text().split()

    update = f"; if that is meant: {sys.argv[0]} --update {arguments.library} {arguments.root}"
    faults = [f"{name} is shown, and is no function of the C interface" for name in sorted(symbols)
              if not name.startswith("fd_")]
    faults += [f"{name} is shown, and {LIST.name} does not have it{update}"
               for name in sorted(symbols) if name not in listed]
    faults += [f"{LIST.name} has {name}, and it is not shown: programs that were linked with it no longer start, "
               f"unless FD_ABI_VERSION is raised{update}" for name in listed if name not in symbols]
    faults += [f"{name} is declared in {folder.name}/, and is not shown: whoever calls it cannot link"
               for name in sorted(declared(headers) - symbols.keys())]
    faults += [f"{name} has version {version or 'none'}, not {node}" for name, version in sorted(symbols.items())
               if version != node]
    if nodes != {node}:
        faults.append(f"the versions are {sorted(nodes)}, not {node} alone")
    if soname(arguments.library) != f"libfastdecode.so.{abi}":
        faults.append(f"the library calls itself {soname(arguments.library)}, not libfastdecode.so.{abi}")
    if listed != sorted(set(listed)):
        faults.append(f"{LIST.name} is not in order{update}")
    for fault in faults:
        print(fault)
    print(f"{len(symbols)} functions of ABI {abi}, {len(faults)} faults")
    return 1 if faults or not symbols else 0


if __name__ == "__main__":
    sys.exit(main())
