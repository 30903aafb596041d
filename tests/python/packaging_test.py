#!/usr/bin/env python3
"""The Python package is installed by pip without a network, from its folder and as a wheel that brings the library.

usage: packaging_test.py REPOSITORY_ROOT BUILD_FOLDER [unittest arguments]
"""
import csv
import hashlib
import base64
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path()
BUILD = pathlib.Path()
SCRATCH = pathlib.Path()
TELL = ("import fastdecode\nfrom fastdecode import LLM, SamplingParams, _library\n"
        "print(fastdecode.__file__)\nprint(_library.load()._name)\n"
        "with LLM({model!r}, kv_gib=0.02, log=None, hop_timeout_ms=60000) as llm:\n"
        "    print(len(llm.generate('Once', SamplingParams(max_tokens=4, ignore_eos=True))[0].outputs[0].token_ids))\n")


def find_pip():
    """A Python that has pip, this one if it can."""
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-m", "pip", "--version"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 0:
            return python
    return None


PIP = find_pip()


class Packaging(unittest.TestCase):
    def source(self):
        """A copy of the package's folder: nothing may be left in the repository."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=SCRATCH)) / "python"
        shutil.copytree(ROOT / "tools/python", folder, ignore=shutil.ignore_patterns("__pycache__", "lib"))
        return folder

    def install(self, *what, target):
        # An index that cannot be reached, so that whatever pip would want from one is an error.
        command = [PIP,
    "-m",
    "pip",
    "install",
    "--quiet",
    "--no-deps",
    "--index-url",
    "http://127.0.0.1:9/",
    "--retries",
    "0",
    "--disable-pip-version-check",
    "--root-user-action=ignore",
    "--target",
    str(target),
    *map(str,
     what)]
        result = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def tell(self, target, **environment):
        """The installed package generates: where it is, what library it has, and how many tokens came."""
        env = {name: value for name, value in os.environ.items() if name not in ("FASTDECODE_LIBRARY", "PYTHONPATH")}
        env.update(environment, PYTHONPATH=str(target))
        script = TELL.format(model=str(ROOT / "tools/demo_model/model"))
        result = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, cwd="/")
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.split()

    def check_record(self, wheel):
        """The wheel's RECORD has the hash and size of each file."""
        with zipfile.ZipFile(wheel) as archive:
            (record,) = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
            rows = list(csv.reader(archive.read(record).decode().splitlines()))
            self.assertEqual([row[0] for row in rows], archive.namelist())
            for name, digest, size in rows[:-1]:
                data = archive.read(name)
                expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
                self.assertEqual((digest, size), (f"sha256={expected}", str(len(data))), name)
            return archive.namelist()

    @unittest.skipUnless(PIP, "there is no pip")
    def test_pip_installs_the_folder(self):
        library = str(BUILD / "tools/libfastdecode.so.3")
        for flags in ([], ["--no-build-isolation"]):
            target = pathlib.Path(tempfile.mkdtemp(dir=SCRATCH))
            source = self.source()
            before = sorted(source.rglob("*"))
            self.install(*flags, source, target=target)
            left = [path for path in source.rglob("*") if "__pycache__" not in str(path)]
            self.assertEqual(sorted(left), before)
            file, loaded, count = self.tell(target, FASTDECODE_LIBRARY=library)
            self.assertEqual((file, loaded, count), (f"{target}/fastdecode/__init__.py", library, "4"))
            self.assertTrue((target / "fastdecode/py.typed").exists())

    @unittest.skipUnless(PIP, "there is no pip")
    def test_a_wheel_brings_the_library(self):
        out, target = (pathlib.Path(tempfile.mkdtemp(dir=SCRATCH)) for _ in range(2))
        result = subprocess.run([sys.executable, str(ROOT / "tools/python/make_wheel"),
                                str(BUILD), "--out", str(out), "--plain"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        (wheel,) = out.glob("*.whl")
        self.assertEqual(result.stdout, f"{wheel}\n")
        self.assertRegex(wheel.name, r"^fastdecode-[\d.]+-py3-none-linux_x86_64\.whl$")
        self.assertIn("libdnnl.so.2", result.stderr)
        names = self.check_record(wheel)
        self.assertIn("fastdecode/lib/libfastdecode.so.3", names)
        self.assertEqual("fastdecode/lib/libfastdecode_cuda.so" in names,
                         (BUILD / "tools/libfastdecode_cuda.so").exists())
        self.install(wheel, target=target)
        self.assertEqual(self.tell(target), [f"{target}/fastdecode/__init__.py",
                         f"{target}/fastdecode/lib/libfastdecode.so.3", "4"])

    def test_make_wheel_says_what_is_not_there(self):
        result = subprocess.run([sys.executable, str(ROOT / "tools/python/make_wheel"),
                                "/nowhere"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 1)
        self.assertIn("/nowhere/tools/libfastdecode.so.3 is not there; build it first", result.stderr)

    def test_wheels_and_archives_have_the_whole_package(self):
        modules = {f"fastdecode/{path.name}" for path in (ROOT / "tools/python/fastdecode").iterdir() if path.is_file()}
        self.assertIn("fastdecode/py.typed", modules)
        script = "import wheel_writer, sys; print(getattr(wheel_writer, sys.argv[1])(sys.argv[2]))"
        made = {}
        for hook in ("build_wheel", "build_editable", "build_sdist"):
            out = pathlib.Path(tempfile.mkdtemp(dir=SCRATCH))
            name = subprocess.run([sys.executable,
    "-B",
    "-c",
    script,
    hook,
    str(out)],
    check=True,
    capture_output=True,
    text=True,
    env=dict(os.environ,
     PYTHONPATH=str(ROOT / "tools/python"))).stdout.strip()
            made[hook] = out / name
        self.assertTrue(modules < set(self.check_record(made["build_wheel"])))
        self.check_record(made["build_editable"])
        with tarfile.open(made["build_sdist"]) as archive:
            names = {name.split("/", 1)[1] for name in archive.getnames()}
        self.assertEqual(names, modules | {"pyproject.toml", "wheel_writer.py", "PKG-INFO"})


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    ROOT, BUILD = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory(prefix="fd-python-") as scratch:
        SCRATCH = pathlib.Path(scratch)
        unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
