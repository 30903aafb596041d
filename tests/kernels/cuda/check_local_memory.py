#!/usr/bin/env python3
"""What a thread of a GPU kernel keeps is in its registers.

usage: check_local_memory.py NVCC REPOSITORY_ROOT SCRATCH_FOLDER SOURCE.cu...

An array that ptxas cannot keep in registers, be it since somebody holds its address, goes to local memory, which is the
GPU's DRAM behind a cache: nothing fails, and all is many times slower. A few spilled words are not that.
"""
import pathlib
import re
import subprocess
import sys

LIMIT_BYTES = 100  # of a thread: fewer than 32 floats


def stack_bytes(report):
    """Bytes of each kernel, from what `ptxas -v` says."""
    kernels = {}
    for entry in report.split("Compiling entry function")[1:]:
        name = re.search(r"'(\w+)'", entry)[1]
        kernels[name] = int(re.search(r"(\d+) bytes stack frame", entry)[1])
    return kernels


def main(nvcc, root, scratch, *sources):
    status = 0
    for source in sources:
        command = [nvcc, "-std=c++20", "-O3", "--expt-relaxed-constexpr", f"-I{root}", "-gencode=arch=compute_80,code=sm_90", "-Xptxas", "-v", "-cubin",
                   source, "-o", str(pathlib.Path(scratch) / "local_memory.cubin")]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{result.stdout}{result.stderr}")
        kernels = stack_bytes(result.stdout + result.stderr)
        if not kernels:
            sys.exit(f"{source}: ptxas says nothing of kernels:\n{result.stdout}{result.stderr}")
        print(f"{source}: {len(kernels)} kernels, {max(kernels.values())} bytes of local memory a thread at most")
        for name, size in kernels.items():
            if size > LIMIT_BYTES:
                print(f"{name}: {size} bytes of local memory a thread, at most {LIMIT_BYTES} are expected")
                status = 1
    return status


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
