#!/usr/bin/env python3
"""What runs on a GPU machine (tools/gpu_check/run.py), with programs that play theirs.

usage: gpu_check_test.py REPOSITORY_ROOT
"""
import json
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

ROOT = pathlib.Path(sys.argv.pop(1))
CHECK = ROOT / "tools/gpu_check"

# Says what it was given, and what a test program of GoogleTest's would.
TEST_PROGRAM = """#!/usr/bin/env python3
import json, os, sys
given = dict(word[2:].split("=", 1) for word in sys.argv[1:])
cases = {cases}
assert os.environ["FASTDECODE_CUDA_MODULE"].endswith("module.so") and os.path.isdir(os.environ["FASTDECODE_TESTS_DIR"])
assert "Real" in given["gtest_filter"]
with open(given["gtest_output"].removeprefix("json:"), "w") as out:
    json.dump({{"testsuites": [{{"testsuite": cases}}]}}, out)
for case in cases:
    if case["result"] == "SKIPPED":
        print("../../tests/a_test.cc:74: Skipped\\nbuilt for another GPU\\n")
sys.exit(1 if any(case.get("failures") for case in cases) else 0)
"""
FASTDECODE = """#!/usr/bin/env python3
import json, os, pathlib, sys
if sys.argv[1] == "synth":
    {synth}
    pathlib.Path(sys.argv[sys.argv.index("--out") + 1]).mkdir()
    sys.exit()
assert sys.argv[1:3] in (["bench", "step"], ["bench", "gpu"], ["bench", "gpu-home"], ["latency", "step"])
assert os.path.isdir(sys.argv[sys.argv.index("-m") + 1])
with open("commands", "a") as commands:
    commands.write(" ".join(sys.argv[1:]) + "\\n")
if {error!r}:
    sys.exit("fastdecode: error: " + {error!r})
if sys.argv[1] == "latency":
    # More at both homes; and twice as much without prompts.
    rate = {{"gpu": 100, "local": 200, "gpu,local": 250}}[sys.argv[sys.argv.index("--homes") + 1]] * (2 if "--fill" in sys.argv else 1)
    assert ("--gpu-kv-gib" in sys.argv) == ("gpu" in sys.argv[sys.argv.index("--homes") + 1])
    print(json.dumps({{"recording": {{"tokens": 3 * rate, "start_ns": 5_000_000_000, "end_ns": 8_000_000_000}}}}))
    sys.exit()
three = {{"median": 2.5, "min": 2.0, "max": 3.25}}
if sys.argv[2] == "gpu-home":
    row = {{"batch": 4, "context": 64, "us": three, "kv_gb_per_s": 7.5, "of_copies": 0.875}}
    prompt = {{"tokens": 64, "us": three, "gemms_us": three, "gemms_over_prompt": three, "pushed_us": three, "push_cost": three}}
    print(json.dumps({{"chunk": 256, "attention": [row, dict(row, of_copies=None)], "prompts": [prompt]}}))
    sys.exit()
if sys.argv[2] == "gpu":
    way = {{"count": 9, "p50": 4.25, "p99": None}}
    print(json.dumps({{"batches": [{{"batch": int(batch), "step_us": three, "gemms_us": three, "step_over_gemms": three,
                                   "near_step_over_gemms": dict(three, median=2.125),
                                   "gemms_beside_waits": dict(three, median=2.25), "gemms_tflop_per_s": 1.5, "gemms_gb_per_s": 7.0, "idle_us": way, "hop_us": way,
                                   "hop_bytes": 2048, "reply_bytes": 512, "there_us": {{"kernel": three, "copy": three}},
                                   "back_us": {{"kernel": three, "copy": three}}}}
                                  for batch in sys.argv[sys.argv.index("--batch") + 1].split(",")]}}))
    sys.exit()
assert "cuda" in sys.argv
times = {{"count": 5, "p50_us": 12.5}}
print(json.dumps({{"tokens_per_s": 1234.5, "step_us": 800.0, "stage": times, "hop": times, "kv_gb_per_s": 3.5}}))
"""
# A module, on which whatever is called works.
TORCH = """import sys, unittest.mock
torch = sys.modules[__name__] = unittest.mock.MagicMock()
torch.__version__ = "9.9"
torch.cuda.get_device_name.return_value = "a GPU"
torch.cuda.Event.return_value.elapsed_time.return_value = 0.5
"""


def fastdecode(error="", synth="pass"):
    return FASTDECODE.format(error=error, synth=synth)


def case(name, result="COMPLETED", failures=()):
    return {"classname": "Real/ATest", "name": name, "result": result, **({"failures": list(failures)} if failures else {})}


class GpuCheckTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        for folder in ("bin", "tests", "model"):
            (self.folder / folder).mkdir()
        for file in CHECK.glob("*.py"):
            shutil.copy(file, self.folder)
        (self.folder / "version").write_text("abc1234\n")
        (self.folder / "module.so").touch()
        (self.folder / "needed").write_text("libcudart.so.99\nlibcublasLt.so.99\n")
        self.program("fastdecode", fastdecode())

    def program(self, name, text):
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def check(self, spart, golden, *arguments):
        return self.check_all(spart, golden, "--quick", *arguments)

    def check_all(self, spart, golden, *arguments):
        self.program("cuda_spart_test", TEST_PROGRAM.format(cases=spart))
        self.program("golden_gpu_test", TEST_PROGRAM.format(cases=golden))
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    def command(self, *arguments):
        return [sys.executable, self.folder / "run.py", "--module", self.folder / "module.so", "--out", self.folder / "out", *arguments]

    def commands(self):
        """What the program was asked for, but for whether there is a GPU; a model by its name."""
        lines = (self.folder / "commands").read_text().splitlines()[1:]
        return [re.sub(r"-m \S*/(\S+)", r"-m \1", line) for line in lines]

    def report(self):
        return json.loads((self.folder / "out.json").read_text()), (self.folder / "out.md").read_text()

    def test_all_passed(self):
        code, text = self.check([case("A"), case("B")], [case("C")])
        self.assertEqual(code, 0, text)
        results, markdown = self.report()
        self.assertEqual([test["ran"] for test in results["tests"]], [2, 1])
        self.assertEqual([bench["tokens_per_s"] for bench in results["steps"]], [1234.5, 1234.5])
        self.assertEqual([batch["batch"] for bench in results["alone"] for batch in bench["batches"]], [1, 5, 6, 4])
        self.assertIn("| 5 | 2.5 [2.0..3.2] | 2.5 [2.0..3.2] | 2.500 [2.000..3.250] | 2.125 [2.000..3.250] | 2.250 [2.000..3.250] | 1.5 | 7 | 4.2 / - | 4.2 / - | 2.0, 0.5 | "
                      "2.5 [2.0..3.2] / 2.5 [2.0..3.2] | 2.5 [2.0..3.2] / 2.5 [2.0..3.2] |", markdown)
        self.assertIn("attention, 4 x 64 | 2.5 [2.0..3.2] | | 7.5 | 0.875 | | |", markdown)
        self.assertIn("attention, 4 x 64 | 2.5 [2.0..3.2] | | 7.5 | - | | |", markdown)
        self.assertIn("a prompt of 64 in chunks of 256 | 2.5 [2.0..3.2] | 2.5 [2.0..3.2] | | 2.500 [2.000..3.250] | "
                      "2.5 [2.0..3.2] | 2.500 [2.000..3.250] |", markdown)
        for needle in ("cuda_spart_test: 2 passed", "FastDecode abc1234", "--homes gpu` | 1234.5 | 800 | 12.5 | 12.5 | 3.5 |"):
            self.assertIn(needle, markdown)
        for heading, rates in (("Requests", "100.0 | 200.0 | 250.0"), ("Requests whose prompts are not computed", "200.0 | 400.0 | 500.0")):
            section = markdown.split(f"## {heading}\n")[1].split("##")[0]
            self.assertIn(f"| 64 | 128 | 8 | 0.1 | {rates} | 1.250 |", section)

    def test_a_part_alone(self):
        code, text = self.check([], [], "--only", "homes,decode")
        self.assertEqual(code, 0, text)
        results, markdown = self.report()
        self.assertEqual(sorted(set(results) - {"machine", "module", "cuda"}), ["decode", "homes"])
        self.assertNotIn("## Steps", markdown)
        self.assertIn("- not asked for", markdown)
        code, text = self.check([], [], "--only", "homes,nothing")
        self.assertEqual((code, text), (1, "run: --only: 'nothing' is none of tests, alone, homes, decode, requests, steps, peer\n"))

    def test_a_failure_is_named_and_is_the_exit_code(self):
        code, text = self.check([case("A"), case("B", failures=[{"failure": "expected 1"}])], [case("C")])
        self.assertEqual(code, 1, text)
        self.assertIn("cuda_spart_test: FAILED (exit 1): Real/ATest.B", self.report()[1])

    def test_without_a_gpu_it_says_so_whatever_is_asked_for(self):
        self.program("fastdecode", fastdecode(error="no GPU: no CUDA-capable device is detected (cudaErrorNoDevice)"))
        for only in ([], *(["--only", part] for part in ("tests", "alone", "homes", "steps", "decode", "requests", "peer"))):
            code, text = self.check([case("A", "SKIPPED")], [case("C", "SKIPPED")], *only)
            self.assertEqual((code, text), (3, "run: no GPU: no CUDA-capable device is detected (cudaErrorNoDevice)\n"), only)

    def test_tests_that_are_skipped_on_a_gpu_say_why(self):
        code, text = self.check([case("A", "SKIPPED")], [case("C", "SKIPPED")], "--only", "tests")
        self.assertEqual(code, 1, text)
        self.assertIn("golden_gpu_test: skipped: built for another GPU", self.report()[1])

    def test_figures_that_failed_are_a_failure(self):
        self.program("fastdecode", fastdecode(error="the weights need 14.96 GiB as bf16, the GPU has 9.52 GiB free"))
        self.assertEqual(self.check([case("A")], [case("C")])[0], 1)

    def test_a_program_that_runs_no_test_is_no_success(self):
        self.assertEqual(self.check([], [])[0], 1)
        self.assertIn("NO TEST RAN", self.report()[1])

    def test_what_is_not_over_in_time_is_ended_and_the_rest_is_left_out(self):
        self.program("fastdecode", fastdecode().replace("import json, os, pathlib, sys\n", "import json, os, pathlib, sys, time\n", 1)
                     .replace('if sys.argv[2] == "gpu-home":\n', 'if sys.argv[2] == "gpu-home":\n    print("hangs", file=sys.stderr, flush=True)\n    time.sleep(600)\n'))
        for within in ("5", "20", "60"):  # 5 suffice, unless the machine takes longer to come to the program that hangs
            code, text = self.check([case("A")], [case("C")], "--within", within)
            self.assertEqual(code, 1, text)
            results, markdown = self.report()
            if any(home["error"].startswith("hangs") for home in results.get("homes", [])):
                break
        self.assertEqual([test["ran"] for test in results["tests"]], [1, 1])
        self.assertEqual([batch["batch"] for bench in results["alone"] for batch in bench["batches"]], [1, 5, 6, 4])
        self.assertRegex(results["homes"][0]["error"], r"^hangs\n\nnot over after \d+ s$")
        self.assertIn("left out: the time of --within is over", markdown)

    def test_models_are_made_while_the_tests_run(self):
        # Either waits for the other to have begun.
        wait = ("import time; pathlib.Path('{mine}').touch()\n{indent}for _ in range(6000):\n{indent}    if pathlib.Path('{other}').exists(): break\n"
                "{indent}    time.sleep(0.01)\n{indent}else: sys.exit('alone')")
        self.program("fastdecode", fastdecode(synth=wait.format(mine="synth-runs", other=self.folder / "tests-run", indent="    ")))
        waits = wait.format(mine=self.folder / "tests-run", other=self.folder / "synth-runs", indent="")
        with unittest.mock.patch(f"{__name__}.TEST_PROGRAM", TEST_PROGRAM.replace("import json, os, sys\n", f"import json, os, pathlib, sys\n{waits}\n")):
            code, text = self.check_all([case("A")], [case("C")], "--only", "tests,alone")
        self.assertEqual(code, 0, text)
        self.assertEqual([line.split()[3] for line in self.commands()], ["llama-3-8b-8", "tinyllama-1.1b-all"])
        self.assertEqual([batch["batch"] for bench in self.report()[0]["alone"] for batch in bench["batches"]], 2 * [1, 5, 6, 64, 256, 1024])

    def test_a_model_that_is_not_made_is_named_and_the_others_are_measured(self):
        self.program("fastdecode", fastdecode(synth='sys.exit("no space left") if "tinyllama-1.1b" in sys.argv else None'))
        code, text = self.check_all([], [], "--only", "alone")
        self.assertEqual(code, 1, text)
        results, markdown = self.report()
        self.assertEqual(results["models"], [{"command": "synth --shape tinyllama-1.1b", "error": "no space left"}])
        self.assertIn("- `synth --shape tinyllama-1.1b`: no space left", markdown)
        self.assertEqual([line.split()[3] for line in self.commands()], ["llama-3-8b-8"])

    def test_told_to_end_it_leaves_no_model_and_no_program(self):
        self.program("fastdecode", fastdecode(synth="""import time
    model = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
    model.mkdir()
    pathlib.Path("making.new").write_text(f"{os.getpid()} {model}")
    os.rename("making.new", "making")
    time.sleep(600)"""))
        for number in (signal.SIGTERM, signal.SIGHUP):
            with subprocess.Popen(self.command("--only", "homes"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
                self.addCleanup(running.kill)
                while not (self.folder / "making").exists():
                    self.assertIsNone(running.poll())
                    time.sleep(0.01)
                pid, model = (self.folder / "making").read_text().split()
                (self.folder / "making").unlink()
                running.send_signal(number)
                self.assertEqual(running.wait(120), 128 + number)
            self.assertFalse(pathlib.Path(model).parent.exists())
            with self.assertRaises(ProcessLookupError):
                os.kill(int(pid), 0)

    def test_what_matters_comes_first(self):
        self.assertEqual(self.check_all([case("A")], [case("C")], "--seconds", "3")[0], 0)
        kinds = [" ".join(line.split()[:2]) + (" filled" if "--fill" in line else "") for line in self.commands()]
        self.assertEqual([kind for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]],
                         ["bench gpu", "bench gpu-home", "latency step filled", "latency step", "bench step"])
        loads = [line for line in self.commands() if line.startswith("latency")]
        self.assertTrue(all(("--warmup-seconds 1 --seconds 3 " if "--fill" in line else "--warmup-seconds 1.5 --seconds 3 ") in line for line in loads), loads)
        self.assertTrue(all("-m llama-3-8b-8 " in line for line in loads), loads)

    def test_seconds_of_loads_unless_said(self):
        self.assertEqual(self.check_all([], [], "--only", "decode,requests")[0], 0)
        self.assertEqual({re.search("--warmup.*--worst", line)[0] for line in self.commands()},
                         {"--warmup-seconds 5 --seconds 15 --worst", "--warmup-seconds 10 --seconds 20 --worst"})

    def test_loads_by_their_prompts(self):
        self.assertEqual(self.check_all([], [], "--only", "decode,requests", "--prompts", "8064,512")[0], 0)
        found = {part: {row["context"] for row in self.report()[0][part]} for part in ("decode", "requests")}
        self.assertEqual(found, {"decode": {512, 8064}, "requests": {512}})
        code, text = self.check_all([], [], "--prompts", "512,100")
        self.assertEqual((code, text), (1, "run: --prompts: 100 is none of 512, 2048, 8064\n"))
        self.assertIn("argument --prompts: invalid numbers value: '5k'", self.check_all([], [], "--prompts", "5k")[1])

    def test_sanitizers_look_at_kernels_of_ours_and_their_reports_keep_both_ends(self):
        tools = self.folder / "tools"
        tools.mkdir()
        sanitizer = tools / "compute-sanitizer"
        sanitizer.write_text("#!/bin/bash\necho \"$@\" >>sanitized\n"
                             "[ $2 != racecheck ] || { echo first hazard; printf 'x%.0s' {1..9000}; echo last hazard; exit 9; }\n"
                             "while [ \"${1##*/}\" != cuda_spart_test ] && [ \"${1##*/}\" != golden_gpu_test ]; do shift; done\nexec \"$@\"\n")
        sanitizer.chmod(0o755)
        with unittest.mock.patch.dict("os.environ", {"PATH": f"{tools}:{os.environ['PATH']}"}):
            code, text = self.check([case("A")], [case("C")], "--only", "tests", "--sanitize")
        self.assertEqual(code, 1, text)
        found = self.report()[0]["sanitizer"]
        self.assertEqual([test["exit"] for tool in ("memcheck", "racecheck", "synccheck") for test in found[tool]], [0, 0, 9, 9, 0, 0])
        self.assertRegex(found["racecheck"][0]["output"], r"^first hazard\nx+\n\[\.\.\.\]\nx+last hazard\n$")
        lines = (self.folder / "sanitized").read_text().splitlines()
        self.assertEqual(len(lines), 6)
        self.assertTrue(all("--kernel-name kns=fastdecode" in line and "--error-exitcode 9" in line for line in lines), lines)
        # Tests whose GEMMs have 16-bit types: not by racecheck.
        self.assertEqual([line.split()[1] for line in lines if "ARowIsTheSame" in line or "GoldenGpuTest.*" in line],
                         ["memcheck"] * 2 + ["synccheck"] * 2)
        self.assertEqual([line.split()[1] for line in lines if "Real/*gqa" in line], ["memcheck", "synccheck"])
        self.assertEqual([line.split()[1] for line in lines if "*DeviceAttention*/Real" in line], ["memcheck", "synccheck", "racecheck"])

    def test_without_a_sanitizer_nothing_runs(self):
        with unittest.mock.patch.dict("os.environ", {"PATH": str(self.folder / "bin")}):
            code, text = self.check([case("A")], [case("C")], "--sanitize")
        self.assertEqual((code, text),
                         (1, "run: --sanitize: no compute-sanitizer in PATH; a CUDA toolkit has it in its bin\n"))
        self.assertFalse((self.folder / "commands").exists())

    def test_where_the_report_goes_is_made_before_anything_runs(self):
        spart = TEST_PROGRAM.replace("cases =", "assert os.path.exists('new/folder/out.json') and os.path.exists('new/folder/out.md')\ncases =")
        with unittest.mock.patch(f"{__name__}.TEST_PROGRAM", spart):
            code, text = self.check([case("A")], [case("C")], "--only", "tests", "--out", self.folder / "new/folder/out")
        self.assertEqual(code, 0, text)
        written = json.loads((self.folder / "new/folder/out.json").read_text())
        self.assertEqual([test["ran"] for test in written["tests"]], [1, 1])
        code, text = self.check([], [], "--out", self.folder / "version/out")
        self.assertEqual((code, text), (1, f"run: --out: {self.folder}/version: File exists\n"))

    def test_a_pytorch_that_fails_says_why_and_leaves_what_it_measured(self):
        for failure, reason in (('raise OSError("libcudnn.so.9: cannot open shared object file")',
                                 "libcudnn.so.9: cannot open shared object file"),
                                ("raise AssertionError", "AssertionError"),
                                ('torch.cuda.is_available.side_effect = RuntimeError("unknown error\\ncalls may say so late")',
                                 "unknown error")):
            (self.folder / "torch.py").write_text(TORCH + failure)
            code, text = self.check_all([], [], "--only", "peer")
            self.assertEqual(code, 0, text)
            self.assertEqual(self.report()[0]["peer"], {"none": reason})
        (self.folder / "torch.py").write_text(TORCH + 'torch.randn.side_effect = RuntimeError("out of memory")')
        code, text = self.check_all([], [], "--only", "peer")
        self.assertEqual(code, 0, text)
        results, markdown = self.report()
        self.assertEqual(results["peer"]["error"], "out of memory")
        self.assertEqual([one["us"] for one in results["peer"]["figures"]], [500])
        self.assertIn("PyTorch 9.9 on a GPU:", markdown)
        self.assertIn("| copy 1 GiB on the device | 500 |", markdown)
        self.assertIn("No more: out of memory.", markdown)

    def test_cuda_is_found_by_the_names_that_the_module_needs(self):
        (self.folder / "libfastdecode_cuda.so").touch()
        (self.folder / "libcudart.so.99").touch()
        with unittest.mock.patch.dict("os.environ", {"LD_LIBRARY_PATH": str(self.folder)}):
            code, text = self.check([], [], "--module", self.folder / "libfastdecode_cuda.so")
            self.assertEqual(code, 1, text)
            self.assertIn(f"run: libcublasLt.so.99 not found in: {self.folder}, ", text)
            (self.folder / "libcublasLt.so.99").touch()
            code, text = self.check([], [], "--module", self.folder / "libfastdecode_cuda.so", "--only", "homes")
        self.assertEqual(code, 0, text)
        self.assertEqual(self.report()[0]["cuda"], [str(self.folder)])

    def test_bad_use(self):
        code, text = self.check([], [], "--module", self.folder / "none.so")
        self.assertEqual((code, text), (1, f"run: --module: {self.folder}/none.so does not exist\n"))


if __name__ == "__main__":
    unittest.main()
