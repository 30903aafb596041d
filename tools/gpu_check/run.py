#!/usr/bin/env python3
"""Runs the tests that need a GPU, and measures; writes a report for programs and one for people.

usage: run [--out NAME] [--only PART,...] [--module FILE] [--quick] [--sanitize]
"""
import argparse
import datetime
import glob
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time

import peer
import report

HERE = pathlib.Path(__file__).resolve().parent
NEEDED = ("libcudart.so.13", "libcublasLt.so.13")
TESTS = ("cuda_spart_test", "golden_gpu_test")
TEST_LIMIT_S = 1200
BENCH_LIMIT_S = 300
SHAPES = (("tinyllama-1.1b", None), ("llama-3-8b", 8))
BATCHES = (64, 256, 1024)
# Of the bench gpu-home that a model's folder gets.
HOMES = {"llama-3-8b-8": (["--batch", "64", "--context", "512,4096", "--prompt", "512,2048"],
                          ["--batch", "16", "--context", "8192", "--prompt", "8192"],
                          ["--batch", "64", "--context", "4096", "--prompt", "2048", "--chunk", "2048"],
                          ["--batch", "64", "--context", "4096", "--prompt", "2048", "--kv-type", "int8"])}
QUICK_HOMES = (["--batch", "4", "--context", "64", "--prompt", "64", "--repetitions", "2"],)
HOP_BATCHES = (1, 5)  # of llama-3-8b's rows, 5 are 60 KiB
PARTS = ("tests", "alone", "homes", "steps", "decode", "requests", "peer")
OUTPUT_TOKENS = 128
# Requests at once, by the tokens of each prompt.
LOADS = {512: 256, 2048: 256, 8192: 128}
DEVICE_KV_GIB = (4, 16)


def cuda_folders():
    """Folders with CUDA's libraries: as the loader is told, of a toolkit, beside PyTorch."""
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    folders += sorted(glob.glob("/usr/local/cuda*/lib64"), reverse=True) + ["/usr/lib/x86_64-linux-gnu", "/usr/local/nvidia/lib64"]
    for site in sys.path:
        folders += sorted(glob.glob(f"{site}/nvidia/*/lib"))
    return folders


def find_cuda():
    """(folders that have what is needed, what is missing)."""
    found, missing = [], []
    for name in NEEDED:
        folder = next((folder for folder in cuda_folders() if os.path.exists(os.path.join(folder, name))), None)
        if folder is None:
            missing.append(name)
        elif folder not in found:
            found.append(folder)
    return found, missing


def environment(folders):
    """Of programs of this folder: they run in it, where their loader is."""
    path = folders + [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(path), "FASTDECODE_TESTS_DIR": str(HERE / "tests")}


def execute(command, env, limit_s):
    """(exit code, stdout, stderr); None: it took too long."""
    try:
        done = subprocess.run([str(word) for word in command], cwd=HERE, env=env, capture_output=True, text=True, timeout=limit_s)
        return done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        return None, str(late.stdout or ""), str(late.stderr or "")


def describe_machine():
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit", "--format=csv,noheader"]
    gpu = None
    if shutil.which("nvidia-smi"):
        done = subprocess.run(query, capture_output=True, text=True)
        gpu = done.stdout.strip() or done.stderr.strip()
    model = [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return {"gpu": gpu, "cpu": model[0] if model else platform.machine(), "cores": os.cpu_count(),
            "kernel": platform.release(), "libc": " ".join(platform.libc_ver()),
            "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "version": (HERE / "version").read_text().strip()}


def why_no_gpu(module, env):
    """The program's own words where it finds no GPU; else None."""
    command = [HERE / "bin/fastdecode", "bench", "gpu", "-m", HERE / "model", "--batch", "1", "--repetitions", "1"]
    _, _, errors = execute([*command, "--cuda-module", module, "--json", "-q"], env, BENCH_LIMIT_S)
    found = re.search(r"no GPU: .*\((cudaErrorNoDevice|cudaErrorInsufficientDriver)\)", errors)
    return found and found[0]


def summarise(document, output):
    """Of a test program's own JSON, and what it printed, which alone says why a test was skipped."""
    cases = [case for suite in document["testsuites"] for case in suite["testsuite"]]
    failed = [f"{case['classname']}.{case['name']}" for case in cases if case.get("failures")]
    reasons = set(re.findall(r": Skipped\n(.+)", output))
    skipped = sum(1 for case in cases if case.get("result") == "SKIPPED")
    return {"ran": len(cases) - skipped, "failed": failed, "skipped": skipped, "why_skipped": sorted(reasons)}


def run_tests(module, env, wrapper=(), quick=False):
    results = []
    for name in TESTS:
        with tempfile.TemporaryDirectory() as scratch:
            output = pathlib.Path(scratch) / "result.json"
            only = "Real/*gqa_*:*/Real" if quick else "Real/*:*/Real"
            begun = time.monotonic()
            code, text, errors = execute([*wrapper, HERE / "bin" / name, f"--gtest_filter={only}", f"--gtest_output=json:{output}"],
                                         {**env, "FASTDECODE_CUDA_MODULE": str(module)}, TEST_LIMIT_S)
            result = {"name": name, "seconds": round(time.monotonic() - begun, 1), "exit": code}
            if output.exists():
                result.update(summarise(json.loads(output.read_text()), text))
            if code != 0:
                result["output"] = (text + errors)[-4000:]
            results.append(result)
            print(report.test_line(result), flush=True)
    return results


def model_name(shape, layers):
    return f"{shape}-{layers or 'all'}"


def make_model(shape, layers, folder, env):
    more = [] if layers is None else ["--layers", layers]
    path = folder / model_name(shape, layers)
    code, _, errors = execute([HERE / "bin/fastdecode", "synth", "--shape", shape, *more, "--out", path], env, BENCH_LIMIT_S)
    if code != 0:
        raise RuntimeError(f"synth {shape}: {errors.strip()}")
    return path


def bench(model, arguments, module, env):
    command = [HERE / "bin/fastdecode", "bench", "step", "-m", model, "--spart", "cuda", "--cuda-module", module, "--json", "-q",
               *arguments]
    code, text, errors = execute(command, env, BENCH_LIMIT_S)
    result = {"command": " ".join(["bench step -m", pathlib.Path(str(model)).name, *map(str, arguments)])}
    if code != 0:
        return {**result, "error": errors.strip()[-600:] or f"exit {code}"}
    figures = json.loads(text)
    keep = ("tokens_per_s", "step_us", "stage", "hop", "overlap", "s_busy", "weight_gb_per_s", "kv_gb_per_s", "rows")
    return {**result, **{key: figures[key] for key in keep if key in figures}}


def bench_alone(model, batches, module, env):
    """Steps at a home that answers at once, beside their GEMMs; and the way to a home and back."""
    arguments = ["bench", "gpu", "-m", model, "--batch", ",".join(map(str, batches)), "--repetitions", "30"]
    code, text, errors = execute([HERE / "bin/fastdecode", *arguments, "--cuda-module", module, "--json", "-q"], env, BENCH_LIMIT_S)
    result = {"command": f"bench gpu -m {pathlib.Path(str(model)).name}"}
    if code != 0:
        return {**result, "error": errors.strip()[-600:] or f"exit {code}"}
    return {**result, **json.loads(text)}


def bench_home(model, arguments, module, env):
    """Attention to KV in the GPU's memory, and prompts."""
    command = ["bench", "gpu-home", "-m", model, *map(str, arguments)]
    code, text, errors = execute([HERE / "bin/fastdecode", *command, "--cuda-module", module, "--json", "-q"], env, BENCH_LIMIT_S)
    result = {"command": " ".join(["bench gpu-home -m", pathlib.Path(str(model)).name, *map(str, arguments)])}
    if code != 0:
        return {**result, "error": errors.strip()[-600:] or f"exit {code}"}
    return {**result, **json.loads(text)}


def run_load(model, module, env, context, concurrency, homes, filled, quick):
    """Requests that follow one another, each with a prompt of `context` tokens and OUTPUT_TOKENS of an answer: tokens/s."""
    seconds = ("1", "2") if quick else ("5", "15") if filled else ("10", "20")
    arguments = ["latency", "step", "-m", model, "--spart", "cuda", "--concurrency", concurrency, "--max-sequences", concurrency,
                 "--prompt-tokens", context, "--output-tokens", OUTPUT_TOKENS, "--max-context", context + OUTPUT_TOKENS, *homes,
                 *(["--fill"] if filled else []), "--warmup-seconds", seconds[0], "--seconds", seconds[1]]
    code, text, errors = execute([HERE / "bin/fastdecode", *arguments, "--cuda-module", module, "--worst", "0", "--json", "-q"], env,
                                 BENCH_LIMIT_S)
    shown = [pathlib.Path(str(word)).name if word is model else str(word) for word in arguments]
    result = {"command": " ".join(shown)}
    if code != 0:
        return {**result, "error": errors.strip()[-600:] or f"exit {code}"}
    recording = json.loads(text)["recording"]
    return {**result, "tokens_per_s": recording["tokens"] / (recording["end_ns"] - recording["start_ns"]) * 1e9}


def compare_loads(model, module, env, filled, quick):
    """KV at the GPU, at the host and at both, by context and by how much of it the GPU has room for."""
    rows = []
    for context, concurrency in ({64: 8} if quick else LOADS).items():
        if not filled and context > 2048:
            continue  # the host alone computes such prompts' attention for minutes
        local = run_load(model, module, env, context, concurrency, ["--homes", "local"], filled, quick)
        for gib in (0.1,) if quick else DEVICE_KV_GIB:
            room = ["--gpu-kv-gib", gib]
            row = {"context": context, "concurrency": concurrency, "output": OUTPUT_TOKENS, "filled": filled, "gpu_kv_gib": gib,
                   "gpu": run_load(model, module, env, context, concurrency, ["--homes", "gpu", *room], filled, quick), "local": local,
                   "both": run_load(model, module, env, context, concurrency, ["--homes", "gpu,local", *room], filled, quick)}
            if not any("error" in row[way] for way in ("gpu", "local", "both")):
                alone = max(row["gpu"]["tokens_per_s"], row["local"]["tokens_per_s"])
                row["both_over_better"] = row["both"]["tokens_per_s"] / alone if alone > 0 else None
            rows.append(row)
            print("\n".join(report.load_lines(rows[-1:])), flush=True)
    return rows


def measure_model(model, batches, ways, context, parts, module, env, quick):
    """Parts of one model, each a list."""
    found = {}
    if "alone" in parts:
        found["alone"] = [bench_alone(model, (*HOP_BATCHES, *batches), module, env)]
        print("\n".join(report.alone_lines(found["alone"])), flush=True)
    if "homes" in parts:
        found["homes"] = []
        for arguments in QUICK_HOMES if quick else HOMES.get(model.name, []):
            found["homes"].append(bench_home(model, arguments, module, env))
            print("\n".join(report.home_lines(found["homes"][-1:])), flush=True)
    if "steps" in parts:
        found["steps"] = []
        for batch in batches:
            for way in ways:
                found["steps"].append(bench(model, ["--batch", batch, "--context", context, *way], module, env))
                print(report.bench_line(found["steps"][-1]), flush=True)
    if quick or model.name in HOMES:
        for part, filled in (("decode", True), ("requests", False)):
            if part in parts:
                found[part] = compare_loads(model, module, env, filled, quick)
    return found


def measure(parts, module, env, quick):
    """Of each part that is measured, a list."""
    found = {part: [] for part in parts if part not in ("tests", "peer")}
    if not found:
        return found
    with tempfile.TemporaryDirectory() as scratch:
        shapes = [(HERE / "model", [4], [["--homes", "local"], ["--homes", "gpu"]], 64)]
        if not quick:
            ways = [["--homes", "gpu", "--micro-batches", "1"], ["--homes", "gpu", "--micro-batches", "2"],
                    ["--homes", "local", "--micro-batches", "2"], ["--homes", "gpu,local", "--micro-batches", "2"]]
            wanted = [shape for shape in SHAPES if {"alone", "steps"} & found.keys() or model_name(*shape) in HOMES]
            shapes = [(make_model(*shape, pathlib.Path(scratch), env), BATCHES, ways, 512) for shape in wanted]
        for model, batches, ways, context in shapes:
            for part, figures in measure_model(model, batches, ways, context, parts, module, env, quick).items():
                found[part] += figures
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="gpu-report", help="NAME.json and NAME.md [gpu-report]")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between: " + ", ".join(PARTS) + " [all]")
    parser.add_argument("--module", default=str(HERE / "bin/libfastdecode_cuda.so"), help="another module: a GPU in software")
    parser.add_argument("--quick", action="store_true", help="a few tests, and a tiny model")
    parser.add_argument("--sanitize", action="store_true", help="the tests under compute-sanitizer, too: memcheck, racecheck, synccheck")
    options = parser.parse_args()
    parts = options.only.split(",")
    for part in parts:
        if part not in PARTS:
            sys.exit(f"run: --only: '{part}' is none of {', '.join(PARTS)}")
    out = pathlib.Path(options.out).resolve()
    module = pathlib.Path(options.module).resolve()
    if not module.exists():
        sys.exit(f"run: --module: {module} does not exist")
    folders, missing = find_cuda()
    if missing and module.name == "libfastdecode_cuda.so":
        sys.exit(f"run: {', '.join(missing)} not found in: {', '.join(cuda_folders())}; name its folder in LD_LIBRARY_PATH")
    env = environment(folders)
    no_gpu = why_no_gpu(module, env)
    if no_gpu:
        print(f"run: {no_gpu}", file=sys.stderr)
        return report.EXIT_NO_GPU
    results = {"machine": describe_machine(), "module": module.name, "cuda": folders}
    if "tests" in parts:
        results["tests"] = run_tests(module, env, quick=options.quick)
    if options.sanitize and shutil.which("compute-sanitizer"):
        results["sanitizer"] = {tool: run_tests(module, env, ("compute-sanitizer", "--tool", tool, "--error-exitcode", "9"), True)
                                for tool in ("memcheck", "racecheck", "synccheck")}
    results.update(measure(parts, module, env, options.quick))
    if "peer" in parts:
        results["peer"] = peer.measure(options.quick)
    out.with_name(out.name + ".json").write_text(json.dumps(results, indent=1) + "\n")
    out.with_name(out.name + ".md").write_text(report.markdown(results))
    print(f"{out}.json, {out}.md")
    return report.exit_code(results)


if __name__ == "__main__":
    sys.exit(main())
