#!/usr/bin/env python3
"""Runs the tests that need a GPU, and measures; writes a report for programs and one for people.

usage: run [--out NAME] [--only PART,...] [--within SECONDS] [--seconds S] [--prompts TOKENS,...] [--module FILE] [--quick] [--sanitize]
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
import signal
import subprocess
import sys
import tempfile
import time

import peer
import report

HERE = pathlib.Path(__file__).resolve().parent
TESTS = ("cuda_spart_test", "golden_gpu_test")
# Under compute-sanitizer, which looks at our kernels alone: all of a step's, with KV at the GPU, and attention by itself.
SANITIZED_KERNELS = ("--kernel-name", "kns=fastdecode", "--print-limit", "0")
SANITIZED = {"cuda_spart_test": "*Computes*/Real:*Samples*/Real:*ALostHome*/Real:*ARowIsTheSame*/Real:*ShowsTheLogits*/Real:*DeviceAttention*/Real",
             "golden_gpu_test": "Real/GoldenGpuTest.*/head_*_gpu:Real/*gqa_chunk256_gpu"}
# Under racecheck cuBLASLt's GEMMs of 16-bit types end in an internal error of the tool on an H200: what needs none.
SANITIZED_BY = {"memcheck": SANITIZED, "synccheck": SANITIZED,
                "racecheck": {"cuda_spart_test": "*Computes*/Real:*Samples*/Real:*ALostHome*/Real:*ShowsTheLogits*/Real:*DeviceAttention*/Real",
                              "golden_gpu_test": "Real/GoldenGpuTest.Exact*/head_*_gpu:Real/GoldenGpuTest.Exact*/gqa_chunk256_gpu:"
                                                 "Real/GoldenGpuKvTest.*/gqa_chunk256_gpu"}}
TEST_LIMIT_S = 1200
BENCH_LIMIT_S = 300
SHAPES = (("llama-3-8b", 8), ("tinyllama-1.1b", None))
MODELS_BYTES = 8 << 30  # of all shapes
BATCHES = (64, 256, 1024)
# Of the bench gpu-home that a model's folder gets.
HOMES = {"llama-3-8b-8": (["--batch", "64", "--context", "512,4096", "--prompt", "512,2048"],
                          ["--batch", "16", "--context", "8192", "--prompt", "8192"],
                          ["--batch", "64", "--context", "4096", "--prompt", "2048", "--chunk", "2048"],
                          ["--batch", "64", "--context", "4096", "--prompt", "2048", "--kv-type", "int8"])}
WAYS = (["--homes", "gpu"], ["--homes", "local"])
QUICK_HOMES = (["--batch", "4", "--context", "64", "--prompt", "64", "--repetitions", "2"],)
HOP_BATCHES = (1, 5, 6)  # of llama-3-8b's rows, 5 are 60 KiB and 6 are 72
PARTS = ("tests", "alone", "homes", "decode", "requests", "steps", "peer")  # in this order
MEASURED = {"alone", "homes", "steps", "decode", "requests"}  # by the program itself
OUTPUT_TOKENS = 128
# Requests at once, by the tokens of each prompt.
LOADS = {512: 256, 2048: 256, 8064: 128}  # 8192 with the answer, the context of llama-3-8b
QUICK_LOADS = {64: 8}
# Of a load whose prompts are filled in, and of one whose prompts are computed: recorded, of that before it.
SECONDS = {True: (15, 1 / 3), False: (20, 1 / 2)}
QUICK_SECONDS = 2
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
    for name in (HERE / "needed").read_text().split():
        folder = next((folder for folder in cuda_folders() if os.path.exists(os.path.join(folder, name))), None)
        if folder is None:
            missing.append(name)
        elif folder not in found:
            found.append(folder)
    return found, missing


def environment(folders, module):
    """Of programs of this folder: they run in it, where their loader is."""
    path = folders + [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(path), "FASTDECODE_TESTS_DIR": str(HERE / "tests"),
            "FASTDECODE_CUDA_MODULE": str(module)}


LEFT_OUT = "left out: the time of --within is over"


class Programs:
    """Runs those of this folder."""

    def __init__(self, module, env, within_s=None):
        self.module = module
        self._env = env
        self._end = None if within_s is None else time.monotonic() + within_s

    def left_s(self, limit_s):
        """Of the limit, as far as there is time."""
        return limit_s if self._end is None else min(limit_s, self._end - time.monotonic())

    def begin(self, command, errors):
        """To run beside others. `errors`: a file, open for writing."""
        return subprocess.Popen([str(word) for word in command], cwd=HERE, env=self._env, stdout=subprocess.DEVNULL, stderr=errors)

    def execute(self, command, limit_s):
        """(exit code, stdout, stderr); None: it took too long, or there was no time left for it."""
        left_s = self.left_s(limit_s)
        if left_s <= 0:
            return None, "", LEFT_OUT
        try:
            done = subprocess.run([str(word) for word in command], cwd=HERE, env=self._env, capture_output=True,
                                  encoding="utf-8", errors="replace", timeout=left_s)
            return done.returncode, done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            text, errors = ((out or b"").decode(errors="replace") for out in (late.stdout, late.stderr))
            return None, text, f"{errors}\nnot over after {left_s:.0f} s"

    def fastdecode(self, arguments):
        """What it says as JSON, with its command; or its error."""
        command = [HERE / "bin/fastdecode", *arguments, "--cuda-module", self.module, "--json", "-q"]
        code, text, errors = self.execute(command, BENCH_LIMIT_S)
        result = {"command": " ".join(pathlib.Path(word).name if os.sep in word else word for word in map(str, arguments))}
        if code != 0:
            return {**result, "error": errors.strip()[-600:] or f"exit {code}"}
        return {**result, **json.loads(text)}


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


def why_no_gpu(programs):
    """The program's own words where it finds no GPU; else None."""
    found = programs.fastdecode(["bench", "gpu", "-m", HERE / "model", "--batch", "1", "--repetitions", "1"])
    no_gpu = re.search(r"no GPU: .*\((cudaErrorNoDevice|cudaErrorInsufficientDriver)\)", found.get("error", ""))
    return no_gpu and no_gpu[0]


def summarise(document, output):
    """Of a test program's own JSON, and what it printed, which alone says why a test was skipped."""
    cases = [case for suite in document["testsuites"] for case in suite["testsuite"]]
    failed = [f"{case['classname']}.{case['name']}" for case in cases if case.get("failures")]
    reasons = set(re.findall(r": Skipped\n(.+)", output))
    skipped = sum(1 for case in cases if case.get("result") == "SKIPPED")
    return {"ran": len(cases) - skipped, "failed": failed, "skipped": skipped, "why_skipped": sorted(reasons)}


def shortened(text, most=8000):
    """Its beginning, where a sanitizer says what it found first, and its end."""
    return text if len(text) <= most else f"{text[:most // 2]}\n[...]\n{text[-most // 2:]}"


def run_tests(programs, wrapper=(), quick=False, filters=None):
    results = []
    for name in TESTS:
        with tempfile.TemporaryDirectory() as scratch:
            output = pathlib.Path(scratch) / "result.json"
            only = filters[name] if filters else "Real/*gqa_*:*/Real" if quick else "Real/*:*/Real"
            begun = time.monotonic()
            code, text, errors = programs.execute([*wrapper, HERE / "bin" / name, f"--gtest_filter={only}", f"--gtest_output=json:{output}"],
                                                  TEST_LIMIT_S)
            result = {"name": name, "seconds": round(time.monotonic() - begun, 1), "exit": code}
            if output.exists():
                result.update(summarise(json.loads(output.read_text()), text))
            if code != 0:
                result["output"] = shortened(text + errors)
            results.append(result)
            print(report.test_line(result), flush=True)
    return results


def model_name(shape, layers):
    return f"{shape}-{layers or 'all'}"


class Models:
    """Synthetic models, each made by a program that runs beside the tests: in memory, if there is room."""

    def __init__(self, shapes, programs):
        shm = pathlib.Path("/dev/shm")
        room = shm.is_dir() and shutil.disk_usage(shm).free > 2 * MODELS_BYTES  # for KV, too
        self._scratch = tempfile.TemporaryDirectory(dir=shm if room else None)
        self._programs = programs
        self._making = [self._begin(*shape) for shape in shapes]

    def _begin(self, shape, layers):
        path = pathlib.Path(self._scratch.name) / model_name(shape, layers)
        arguments = ["synth", "--shape", shape, *([] if layers is None else ["--layers", str(layers)]), "--out", str(path)]
        with open(f"{path}.errors", "w") as errors:
            return path, " ".join(arguments[:-2]), self._programs.begin([HERE / "bin/fastdecode", *arguments], errors)

    def __enter__(self):
        return self

    def wait(self):
        """(paths of those that were made, what is said of the others)."""
        made, failed = [], []
        for path, command, process in self._making:
            left_s = max(0, self._programs.left_s(BENCH_LIMIT_S))
            try:
                process.wait(left_s)
                why = pathlib.Path(f"{path}.errors").read_text(errors="replace").strip()[-600:] or f"exit {process.returncode}"
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                why = f"not over after {left_s:.0f} s"
            if process.returncode == 0:
                made.append(path)
            else:
                failed.append({"command": command, "error": why})
        return made, failed

    def __exit__(self, *_):
        for _, _, process in self._making:
            process.kill()
            process.wait()
        self._scratch.cleanup()


def bench_step(model, arguments, programs):
    found = programs.fastdecode(["bench", "step", "-m", model, "--spart", "cuda", *arguments])
    keep = ("command", "error", "tokens_per_s", "step_us", "stage", "hop", "overlap", "s_busy", "weight_gb_per_s", "kv_gb_per_s", "rows")
    return {key: found[key] for key in keep if key in found}


def bench_alone(model, batches, programs):
    """Steps at a home that answers at once, beside their GEMMs; and the way to a home and back."""
    return programs.fastdecode(["bench", "gpu", "-m", model, "--batch", ",".join(map(str, batches)), "--repetitions", "30"])


def bench_home(model, arguments, programs):
    """Attention to KV in the GPU's memory, and prompts."""
    return programs.fastdecode(["bench", "gpu-home", "-m", model, *arguments])


def run_load(model, programs, context, concurrency, homes, filled, seconds):
    """Requests that follow one another, each with a prompt of `context` tokens and OUTPUT_TOKENS of an answer: tokens/s."""
    default_s, before = SECONDS[filled]
    recorded_s = seconds or default_s
    found = programs.fastdecode(
        ["latency", "step", "-m", model, "--spart", "cuda", "--concurrency", concurrency, "--max-sequences", concurrency,
         "--prompt-tokens", context, "--output-tokens", OUTPUT_TOKENS, "--max-context", context + OUTPUT_TOKENS, *homes,
         *(["--fill"] if filled else []), "--warmup-seconds", f"{recorded_s * before:g}", "--seconds", f"{recorded_s:g}", "--worst", "0"])
    if "error" in found:
        return found
    recording = found["recording"]
    return {"command": found["command"],
            "tokens_per_s": recording["tokens"] / (recording["end_ns"] - recording["start_ns"]) * 1e9}


def compare_loads(model, programs, filled, quick, seconds, loads):
    """KV at the GPU, at the host and at both, by context and by how much of it the GPU has room for: row after row."""
    for context, concurrency in loads.items():
        if not filled and context > 2048:
            continue  # the host alone computes such prompts' attention for minutes
        local = run_load(model, programs, context, concurrency, ["--homes", "local"], filled, seconds)
        for gib in (0.1,) if quick else DEVICE_KV_GIB:
            room = ["--gpu-kv-gib", gib]
            row = {"context": context, "concurrency": concurrency, "output": OUTPUT_TOKENS, "filled": filled, "gpu_kv_gib": gib,
                   "gpu": run_load(model, programs, context, concurrency, ["--homes", "gpu", *room], filled, seconds), "local": local,
                   "both": run_load(model, programs, context, concurrency, ["--homes", "gpu,local", *room], filled, seconds)}
            if not any("error" in row[way] for way in ("gpu", "local", "both")):
                alone = max(row["gpu"]["tokens_per_s"], row["local"]["tokens_per_s"])
                row["both_over_better"] = row["both"]["tokens_per_s"] / alone if alone > 0 else None
            yield row


def measure_part(part, model, programs, quick, seconds, loads):
    """Figures of one part and one model, as they come."""
    batches = [4] if quick else BATCHES
    if part == "alone":
        yield bench_alone(model, (*HOP_BATCHES, *batches), programs)
    elif part == "homes":
        for arguments in QUICK_HOMES if quick else HOMES.get(model.name, []):
            yield bench_home(model, arguments, programs)
    elif part == "steps":
        for batch in batches:
            for way in WAYS:
                yield bench_step(model, ["--batch", batch, "--context", 64 if quick else 512, *way], programs)
    elif quick or model.name in HOMES:
        yield from compare_loads(model, programs, part == "decode", quick, seconds, loads)


def measure(parts, models, programs, quick, seconds, loads):
    """(part, figures), as they come."""
    for part in PARTS:
        if part in MEASURED & set(parts):
            for model in models:
                for figures in measure_part(part, model, programs, quick, seconds, loads):
                    yield part, figures


def shapes_for(parts):
    """What is to be made for them."""
    if not MEASURED & set(parts):
        return []
    return [shape for shape in SHAPES if {"alone", "steps"} & set(parts) or model_name(*shape) in HOMES]


def write(results, out):
    """Whole files, whenever something new is there: whoever ends this program has what was found."""
    for ending, text in ((".json", json.dumps(results, indent=1) + "\n"), (".md", report.markdown(results))):
        part = out.with_name(out.name + ending + ".part")
        part.write_text(text)
        part.replace(out.with_name(out.name + ending))


def check(results, parts, models, programs, options, out):
    """Adds to the results, and writes them whenever there are new ones."""
    if "tests" in parts:
        results["tests"] = run_tests(programs, quick=options.quick)
        write(results, out)
    if options.sanitize:
        for tool, filters in SANITIZED_BY.items():
            wrapper = ("compute-sanitizer", "--tool", tool, *SANITIZED_KERNELS, "--error-exitcode", "9")
            results.setdefault("sanitizer", {})[tool] = run_tests(programs, wrapper, filters=filters)
            write(results, out)
    made, failed = models.wait()
    if failed:
        results["models"] = failed
    results.update({part: [] for part in PARTS if part in MEASURED & set(parts)})
    loads = QUICK_LOADS if options.quick else {tokens: LOADS[tokens] for tokens in options.prompts or LOADS}
    seconds = QUICK_SECONDS if options.quick and options.seconds is None else options.seconds
    for part, figures in measure(parts, [HERE / "model"] if options.quick else made, programs, options.quick, seconds, loads):
        results[part].append(figures)
        print("\n".join(report.LINES_OF[part]([figures])), flush=True)
        write(results, out)
    if "peer" in parts:
        results["peer"] = peer.measure(options.quick) if programs.left_s(1) > 0 else {"none": LEFT_OUT}


def numbers(text):
    return [int(number) for number in text.split(",")]


def end(number, _):
    """By way of every __exit__, so that programs end and no model stays in memory."""
    signal.signal(number, signal.SIG_IGN)  # `timeout` sends it twice
    sys.exit(128 + number)


def main():
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as it is under nohup
            signal.signal(number, end)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="gpu-report", help="NAME.json and NAME.md [gpu-report]")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between: " + ", ".join(PARTS) + " [all]")
    parser.add_argument("--within", type=float, metavar="SECONDS", help="end what then runs, and leave out what is left")
    parser.add_argument("--seconds", type=float, metavar="S", help="of each load of requests and decode [20, 15]; and a half or a third before")
    parser.add_argument("--prompts", type=numbers, metavar="TOKENS,...",
                        help="of the loads only those with such prompts: " + ", ".join(map(str, LOADS)))
    parser.add_argument("--module", default=str(HERE / "bin/libfastdecode_cuda.so"), help="another module: a GPU in software")
    parser.add_argument("--quick", action="store_true", help="a few tests, and a tiny model")
    parser.add_argument("--sanitize", action="store_true", help="some tests under compute-sanitizer, too: memcheck, racecheck, synccheck")
    options = parser.parse_args()
    parts = options.only.split(",")
    for part in parts:
        if part not in PARTS:
            sys.exit(f"run: --only: '{part}' is none of {', '.join(PARTS)}")
    for tokens in options.prompts or ():
        if tokens not in LOADS:
            sys.exit(f"run: --prompts: {tokens} is none of {', '.join(map(str, LOADS))}")
    if options.sanitize and not shutil.which("compute-sanitizer"):
        sys.exit("run: --sanitize: no compute-sanitizer in PATH; a CUDA toolkit has it in its bin")
    out = pathlib.Path(options.out).resolve()
    module = pathlib.Path(options.module).resolve()
    if not module.exists():
        sys.exit(f"run: --module: {module} does not exist")
    folders, missing = find_cuda()
    if missing and module.name == "libfastdecode_cuda.so":
        sys.exit(f"run: {', '.join(missing)} not found in: {', '.join(cuda_folders())}; name its folder in LD_LIBRARY_PATH")
    programs = Programs(module, environment(folders, module), options.within)
    no_gpu = why_no_gpu(programs)
    if no_gpu:
        print(f"run: {no_gpu}", file=sys.stderr)
        return report.EXIT_NO_GPU
    results = {"machine": describe_machine(), "module": module.name, "cuda": folders}
    if "tests" in parts:
        results["tests"] = []
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write(results, out)
    except OSError as why:
        sys.exit(f"run: --out: {why.filename}: {why.strerror}")
    with Models([] if options.quick else shapes_for(parts), programs) as models:
        check(results, parts, models, programs, options, out)
    write(results, out)
    print(f"{out}.json, {out}.md")
    return report.exit_code(results)


if __name__ == "__main__":
    sys.exit(main())
