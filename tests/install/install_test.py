#!/usr/bin/env python3
"""What `cmake --install` installs works where it is moved to, by every way in which others find it.

usage: install_test.py BUILD REPOSITORY_ROOT C_COMPILER CXX_COMPILER [unittest arguments]
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD, ROOT = pathlib.Path(sys.argv.pop(1)).resolve(), pathlib.Path(sys.argv.pop(1)).resolve()
CC, CXX = sys.argv.pop(1), sys.argv.pop(1)
EXAMPLES = pathlib.Path(__file__).resolve().with_name("examples")
C_FLAGS = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
LIMIT_S = 120
# Little memory, so that a start is quick.
SMALL = ["kv-gib=0.02", "max-sequences=8"]


def command(*arguments, **environment):
    """Runs it in an environment in which nothing of FastDecode's is to be found by chance."""
    inherited = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "TMPDIR", "LANG")}
    return subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True, timeout=LIMIT_S,
                          env={**inherited, **environment})


def needed(file):
    """The libraries that a program or library asks the loader for."""
    return re.findall(r"\(NEEDED\).*\[(.*)\]", command("readelf", "-dW", file).stdout)


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = pathlib.Path(tempfile.mkdtemp(prefix="fd-install-"))
        cls.addClassCleanup(shutil.rmtree, cls.scratch, ignore_errors=True)
        first = cls.scratch / "first"
        installed = command("cmake", "--install", BUILD, "--prefix", first)
        if installed.returncode != 0:
            raise AssertionError(f"cmake --install failed: {installed.stderr}")
        cls.first = first
        cls.prefix = cls.scratch / "moved/to"
        cls.prefix.parent.mkdir()
        first.rename(cls.prefix)
        # As CMake was told when BUILD was configured; lib/x86_64-linux-gnu for packages of Debian.
        cache = (BUILD / "CMakeCache.txt").read_text()
        cls.libdir = cls.prefix / re.search(r"^CMAKE_INSTALL_LIBDIR:\w+=(.*)$", cache, flags=re.M).group(1)

    def succeed(self, result):
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def compile(self, output, *arguments):
        program = self.scratch / output
        self.succeed(command(CC, *C_FLAGS, EXAMPLES / "embed_c.c", *arguments, "-o", program))
        return program

    def ask_pkg_config(self, libdir, *more):
        return self.succeed(command("pkg-config", *more, "--cflags", "--libs", "fastdecode",
                                    PKG_CONFIG_PATH=str(libdir / "pkgconfig"))).split()

    def check_program(self, program, **environment):
        """It runs, was linked with the library of its header, and is told why a model cannot be loaded."""
        model = self.scratch / "no such model"
        result = command(program, model, **environment)
        said = re.match(r"version (\S+), ABI (\d+) of (\d+), (\d+) options\n", result.stdout)
        self.assertTrue(said, result.stdout + result.stderr)
        version, abi, header_abi, options = said.groups()
        self.assertIn(f"fastdecode {version}\n", self.succeed(command(self.prefix / "bin/fastdecode", "--version")))
        self.assertEqual(abi, header_abi)
        self.assertGreater(int(options), 20)
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, rf"^embed_\w+: error \d+: .*{re.escape(str(model))}")

    def test_by_cmake(self):
        build = self.scratch / "by_cmake"
        self.succeed(command("cmake", "-S", EXAMPLES, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}",
                             f"-DCMAKE_C_COMPILER={CC}", f"-DCMAKE_CXX_COMPILER={CXX}"))
        self.succeed(command("cmake", "--build", build))
        for program, shared in ("embed_c", True), ("embed_cpp", True), ("embed_c_static", False):
            with self.subTest(program=program):
                self.check_program(build / program)
                self.assertEqual(any("libfastdecode.so" in name for name in needed(build / program)), shared)
        # All the way to the text that the program gives.
        model = ROOT / "tools/demo_model/model"
        told = ""
        for prompt in "Once upon a time", "The little dog":
            told += self.succeed(command(self.prefix / "bin/fastdecode", "generate", "--model", model, "-q", "--prompt", prompt,
                                         "-n", "20", "--temperature", "0"))
        for program in "embed_c", "embed_cpp", "embed_c_static":
            with self.subTest(program=program):
                said = self.succeed(command(build / program, model, *SMALL))
                self.assertEqual(said.split("\n", 1)[1], told)

    def test_by_pkg_config(self):
        flags = self.ask_pkg_config(self.libdir)
        self.assertEqual([flag for flag in flags if flag.startswith("-l")], ["-lfastdecode"])
        program = self.compile("by_pkg_config", *flags)
        self.check_program(program, LD_LIBRARY_PATH=str(self.libdir))

    def test_by_hand(self):
        program = self.compile("by_hand", f"-I{self.prefix}/include", f"-L{self.libdir}", "-lfastdecode",
                               f"-Wl,-rpath,{self.libdir}")
        self.check_program(program)
        header = (self.prefix / "include/fastdecode/fastdecode.h").read_text()
        abi = re.search(r"#define FD_ABI_VERSION (\d+)", header).group(1)
        self.assertIn(f"libfastdecode.so.{abi}", needed(program))

    def test_by_pkg_config_statically(self):
        flags = self.ask_pkg_config(self.libdir, "--static")
        # Where there are both, the linker prefers the shared one to -lfastdecode.
        flags = ["-l:libfastdecode.a" if flag == "-lfastdecode" else flag for flag in flags]
        program = self.compile("by_pkg_config_statically", *flags)
        self.check_program(program)
        self.assertFalse([name for name in needed(program) if "fastdecode" in name])

    def test_by_pkg_config_statically_without_the_shared_library(self):
        alone = self.scratch / "alone"
        shutil.copytree(self.prefix / "include", alone / "include")
        folder = alone / self.libdir.relative_to(self.prefix)
        shutil.copytree(self.libdir / "pkgconfig", folder / "pkgconfig")
        (folder / "libfastdecode.a").symlink_to(self.libdir / "libfastdecode.a")
        self.check_program(self.compile("alone_program", *self.ask_pkg_config(folder, "--static")))

    def test_headers_need_nothing_else(self):
        include = self.prefix / "include"
        headers = sorted(include.rglob("*.h*"))
        self.assertIn(include / "fastdecode/fastdecode.h", headers)
        self.assertIn(include / "fastdecode/fastdecode.hpp", headers)
        for header in headers:
            text = f"#include <{header.relative_to(include)}>\n"
            languages = [[CXX, "-std=c++17", "-xc++"]]
            if header.suffix == ".h":
                languages.append([CC, "-std=c11", "-xc"])
            for compiler in languages:
                with self.subTest(header=header.name, compiler=compiler):
                    self.succeed(subprocess.run(
                        [*compiler, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", f"-I{include}", "-"],
                        input=text, capture_output=True, text=True, timeout=LIMIT_S))

    def test_the_program_and_what_comes_with_it(self):
        program = self.prefix / "bin/fastdecode"
        self.assertRegex(self.succeed(command(program, "--version")), r"^fastdecode \d+\.\d+\.\d+\n$")
        self.assertIn(".TH FASTDECODE 1", (self.prefix / "share/man/man1/fastdecode.1").read_text())
        completion = self.prefix / "share/bash-completion/completions/fastdecode"
        registered = command("bash", "-c", f"source {completion} && complete -p fastdecode")
        self.assertIn("_fastdecode fastdecode", self.succeed(registered))
        self.assertEqual(completion.read_text(), self.succeed(command(program, "completion")))

    def test_nothing_says_where_it_was_built(self):
        texts = [path for path in self.prefix.rglob("*") if path.suffix in {".cmake", ".pc"}]
        self.assertGreaterEqual(len(texts), 4)
        for path in texts:
            for place in BUILD, ROOT, self.first:
                self.assertNotIn(f"{place}/", path.read_text(), path)
        for file in self.prefix / "bin/fastdecode", self.libdir / "libfastdecode.so":
            self.assertNotRegex(command("readelf", "-dW", file).stdout, r"\((RPATH|RUNPATH)\)", file)

    def test_the_gpu_module_is_found_beside_the_library_and_the_program(self):
        """What is found is no module: that the loader says so shows where it was looked for."""
        program = self.compile("with_gpu", f"-I{self.prefix}/include", f"-L{self.libdir}", "-lfastdecode",
                               f"-Wl,-rpath,{self.libdir}")
        model = ROOT / "tools/demo_model/model"
        by_library = [program, model, "spart=cuda", *SMALL]
        by_program = [self.prefix / "bin/fastdecode", "generate", "--model", model, "--spart", "cuda",
                      "--kv-gib", "0.02", "-p", "x"]
        module = self.libdir / "fastdecode/libfastdecode_cuda.so"
        module.parent.mkdir(exist_ok=True)
        kept = module.with_suffix(".kept")
        if module.exists():
            module.rename(kept)
            self.addCleanup(kept.rename, module)
        for arguments, beside in (by_library, self.libdir), (by_program, self.prefix / "bin"):
            with self.subTest(program=arguments[0]):
                self.assertIn(f"neither {beside / module.name} nor {module} is there", command(*arguments).stderr)
        module.write_bytes(b"")
        self.addCleanup(module.unlink)
        for arguments in by_library, by_program:
            with self.subTest(program=arguments[0]):
                self.assertIn(f"GPU module: {module}: file too short", command(*arguments).stderr)


if __name__ == "__main__":
    unittest.main()
