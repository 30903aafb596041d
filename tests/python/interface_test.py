#!/usr/bin/env python3
"""What the Python package believes of the C interface is what a C compiler makes of the headers; and where it looks for
the library.

usage: interface_test.py REPOSITORY_ROOT [unittest arguments]. PYTHONPATH has tools/python, FASTDECODE_LIBRARY the
library.
"""
import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import fastdecode
from fastdecode import _library

ROOT = pathlib.Path()
HEADERS = ("fastdecode.h", "fastdecode_bench.h")
# By ctypes' type of a field: what a C compiler calls it.
SCALARS = {
    ctypes.c_int8: "int8", ctypes.c_int16: "int16", ctypes.c_int32: "int32", ctypes.c_int64: "int64",
    ctypes.c_uint8: "uint8", ctypes.c_uint16: "uint16", ctypes.c_uint32: "uint32", ctypes.c_uint64: "uint64",
    ctypes.c_float: "float", ctypes.c_double: "double",
}
KIND_OF_FIELD = """#define KIND(x) _Generic((x), int8_t: "int8", int16_t: "int16", int32_t: "int32", \\
  int64_t: "int64", \\
  uint8_t: "uint8", uint16_t: "uint16", uint32_t: "uint32", uint64_t: "uint64", float: "float", double: "double", \\
  fd_step_times: "fd_step_times", default: "pointer")
"""


def structs():
    """The package's structs that have fields, by name."""
    found = {name: value for name, value in vars(_library).items()
             if isinstance(value, type) and issubclass(value, ctypes.Structure) and name.startswith("fd_")}
    return {name: value for name, value in found.items() if getattr(value, "_fields_", None)}


def headers_text():
    """The headers without comments and directives."""
    text = "".join((ROOT / "engine/api/fastdecode" / name).read_text() for name in HEADERS)
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    return re.sub(r"(?m)^\s*#.*$", "", text)


def compile_c(source, *flags):
    """Compiles a C file; returns the path of what came out."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fd-python-", dir=SCRATCH))
    (folder / "source.c").write_text(source)
    command = ["cc", "-std=c11", "-Wall", "-Werror", f"-I{ROOT / 'engine/api'}", *flags, "-o", str(folder / "out"),
               str(folder / "source.c")]
    subprocess.run(command, check=True)
    return folder / "out"


class Headers(unittest.TestCase):
    def kind(self, field):
        if field in SCALARS:
            return SCALARS[field]
        if isinstance(field, type) and issubclass(field, ctypes.Structure):
            return field.__name__
        return "pointer"

    def test_every_struct_has_the_fields_sizes_and_offsets_of_c(self):
        lines, expected = [], []
        for name, struct in structs().items():
            lines.append(f'  printf("{name} %zu\\n", sizeof({name}));')
            expected.append(f"{name} {ctypes.sizeof(struct)}")
            for field in struct._fields_:
                at = f"{name}, {field[0]}"
                value = f"(({name}*)0)->{field[0]}"
                lines.append(f'  printf("{at} %zu %zu %s\\n", offsetof({at}), sizeof({value}), KIND({value}));')
                of = getattr(struct, field[0])
                expected.append(f"{at} {of.offset} {of.size} {self.kind(field[1])}")
        source = ("#include <stdio.h>\n#include <fastdecode/fastdecode_bench.h>\n" + KIND_OF_FIELD +
                  "int main(void) {\n" + "\n".join(lines) + "\n  return 0;\n}\n")
        out = subprocess.run([str(compile_c(source))], check=True, capture_output=True, text=True).stdout
        self.assertEqual(out.splitlines(), expected)

    def test_no_struct_or_field_is_missing(self):
        found = re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", headers_text(), flags=re.S)
        self.assertEqual({name for name, _ in found}, set(structs()))
        for name, body in found:
            fields = []
            for declaration in body.split(";"):
                pointer = re.search(r"\(\*(\w+)\)", declaration)
                if pointer:
                    fields.append(pointer.group(1))
                elif declaration.strip():
                    fields += [re.search(r"(\w+)\s*$", part).group(1) for part in declaration.split(",")]
            self.assertEqual(fields, [field[0] for field in structs()[name]._fields_], name)

    def test_every_function_has_the_types_of_the_headers(self):
        prototypes = re.findall(r"(?m)^([\w *]+?[ *])(fd_\w+)\(([^;{]*)\);", headers_text())
        self.assertEqual({name for _, name, _ in prototypes}, set(_library.FUNCTIONS))
        for result, name, arguments in prototypes:
            arguments = [] if arguments.strip() == "void" else arguments.split(",")
            # Without const and the argument's name.
            types = [re.sub(r"\w+\s*$", "", one) for one in arguments]
            got_result, got_arguments = _library.FUNCTIONS[name]
            self.assertIn(self.plain(result), self.c_names(got_result), name)
            self.assertEqual(len(types), len(got_arguments), name)
            for one, got in zip(types, got_arguments):
                self.assertIn(self.plain(one), self.c_names(got), f"{name}: {one}")

    @staticmethod
    def plain(text):
        return re.sub(r"\bconst\b|\s", "", text)

    def c_names(self, kind):
        """What a type of ctypes is called in the headers; several where ctypes has one for them."""
        if kind is None:
            return {"void"}
        if kind is _library.fd_log_sink:
            return {"fd_log_sink"}
        names = {ctypes.c_char_p: {"char*"}, ctypes.c_void_p: {"void*"}, ctypes.c_char: {"char"},
                 ctypes.c_int: {"int", "int32_t"},
                 ctypes.c_size_t: {"size_t", "uint64_t"}, ctypes.c_uint32: {"uint32_t", "fd_code"},
                 ctypes.c_int64: {"int64_t"}, ctypes.c_float: {"float"}}
        if kind in names:
            return names[kind]
        if issubclass(kind, ctypes.Structure):
            return {kind.__name__}
        return {f"{name}*" for name in self.c_names(kind._type_)}

    def test_constants(self):
        names = {"ABI_VERSION": "FD_ABI_VERSION", "TIMEOUT": "FD_TIMEOUT", "UNKNOWN_REQUEST": "FD_UNKNOWN_REQUEST",
                 "NO_MEMORY": "FD_NO_MEMORY", "BAD_STRUCT_SIZE": "FD_BAD_STRUCT_SIZE"}
        names.update({name: f"FD_{name}" for name in vars(_library) if name.startswith(("EVENT_", "FINISH_"))})
        codes = {name: f"FD_{name}" for name in vars(fastdecode._errors) if name.isupper() and not name.startswith("_")}
        self.assertGreater(len(names), 12)
        self.assertEqual(len(codes), 8)
        prints = "".join(f'  printf("%d\\n", (int){c});\n' for c in [*names.values(), *codes.values()])
        source = f"#include <stdio.h>\n#include <fastdecode/fastdecode.h>\nint main(void) {{\n{prints}  return 0;\n}}\n"
        out = subprocess.run([str(compile_c(source))], check=True, capture_output=True, text=True).stdout
        self.assertEqual([int(line) for line in out.split()],
                         [getattr(_library, name) for name in names] +
                         [getattr(fastdecode._errors, name) for name in codes])
        enums = dict(re.findall(r"(FD_(?:FINISH|EVENT)_[A-Z]+) = (\d+)", headers_text()))
        self.assertEqual(set(enums), {c for c in names.values() if c.startswith(("FD_FINISH", "FD_EVENT"))})
        self.assertEqual(len(re.findall(r"FD_[A-Z_]+ = \d+", re.search(r"enum fd_code \{(.*?)\}", headers_text(),
                                                                      flags=re.S).group(1))), len(codes) + 1)

    def test_stats_has_every_counter(self):
        self.assertEqual(fastdecode.Stats._fields,
                         tuple(f[0] for f in _library.fd_stats._fields_ if f[0] != "struct_size"))
        self.assertEqual(fastdecode.HomeStats._fields,
                         tuple(f[0] for f in _library.fd_home_stats._fields_ if f[0] != "struct_size"))

    def test_the_package_is_of_the_librarys_version(self):
        self.assertEqual(_library.load().fd_version().decode(), fastdecode.__version__)


class Library(unittest.TestCase):
    """Each in a process of its own, as a library is loaded once."""

    def load(self, package=None, **environment):
        """Where a process finds the library, or what error it says."""
        program = ("import fastdecode\nfrom fastdecode import _library\n"
                   "try: print('found', _library.load()._name)\n"
                   "except ImportError as error: print(isinstance(error, fastdecode.FastDecodeError), error)\n")
        env = dict(os.environ, PYTHONPATH=str(package or ROOT / "tools/python"), **environment)
        if "FASTDECODE_LIBRARY" not in environment:
            del env["FASTDECODE_LIBRARY"]
        return subprocess.run([sys.executable, "-c", program], env=env, check=True, capture_output=True,
                              text=True).stdout

    def package_in(self, *folders):
        """A copy of the package, PREFIX/folders/fastdecode; returns PREFIX and its folder."""
        prefix = pathlib.Path(tempfile.mkdtemp(dir=SCRATCH))
        folder = prefix.joinpath(*folders)
        shutil.copytree(ROOT / "tools/python/fastdecode", folder / "fastdecode",
                        ignore=shutil.ignore_patterns("lib", "__py*"))
        return prefix, folder

    def link(self, at):
        at.parent.mkdir(parents=True, exist_ok=True)
        at.symlink_to(os.path.realpath(os.environ["FASTDECODE_LIBRARY"]))
        return at

    def test_a_wrong_path_in_the_environment(self):
        said = self.load(FASTDECODE_LIBRARY="/nowhere/lib.so")
        self.assertEqual(said,
                         "True the environment variable FASTDECODE_LIBRARY names /nowhere/lib.so, where there is no "
                               "file\n")

    def test_no_library_names_every_place_and_what_to_do(self):
        _, folder = self.package_in("tools", "python")
        said = self.load(folder)
        if said.startswith("found libfastdecode.so.3"):
            self.skipTest("the loader's search path has a libfastdecode.so.3")
        for needle in (f"{folder}/fastdecode/lib/libfastdecode.so.3", "build/release/tools/libfastdecode.so.3",
                       "where the loader looks", "cmake --build", "make_wheel", "FASTDECODE_LIBRARY"):
            self.assertIn(needle, said)

    def test_places_in_their_order(self):
        prefix, folder = self.package_in("tools", "python")
        built = self.link(prefix / "build/release/tools/libfastdecode.so.3")
        self.assertEqual(self.load(folder), f"found {built}\n")
        brought = self.link(folder / "fastdecode/lib/libfastdecode.so.3")
        self.assertEqual(self.load(folder), f"found {brought}\n")
        named = self.link(prefix / "named.so")
        self.assertEqual(self.load(folder, FASTDECODE_LIBRARY=str(named)), f"found {named}\n")

    def test_an_installation_under_the_same_prefix(self):
        for folders, at in ((("lib", "python3.11", "site-packages"), "lib"),
                            (("lib", "python3", "dist-packages"), "lib/x86_64-linux-gnu")):
            prefix, folder = self.package_in(*folders)
            installed = self.link(prefix / at / "libfastdecode.so.3")
            self.assertEqual(self.load(folder), f"found {installed}\n")

    def test_the_loaders_search_path_is_the_last(self):
        prefix, folder = self.package_in("tools", "python")
        self.link(prefix / "elsewhere/libfastdecode.so.3")
        said = self.load(folder, LD_LIBRARY_PATH=f"{prefix}/elsewhere:{os.environ.get('LD_LIBRARY_PATH', '')}")
        self.assertEqual(said, "found libfastdecode.so.3\n")

    def test_a_file_that_is_no_library(self):
        file = SCRATCH / "text.so"
        file.write_text("text")
        self.assertRegex(self.load(FASTDECODE_LIBRARY=str(file)),
                         r"text\.so cannot be loaded: .*(invalid ELF|file too short)")

    def test_libraries_of_other_versions(self):
        for source, said in (("unsigned fd_abi_version(void); unsigned fd_abi_version(void) { return 4; }",
                              "has ABI 4"),
                             ("int other; ", "is no library of FastDecode: it has no fd_abi_version"),
                             ("unsigned fd_abi_version(void); unsigned fd_abi_version(void) { return 3; }",
                              "has no fd_version: it is older than this package")):
            library = compile_c(source, "-shared", "-fPIC")
            self.assertIn(f"{library} {said}", self.load(FASTDECODE_LIBRARY=str(library)))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    ROOT = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="fd-python-") as scratch:
        SCRATCH = pathlib.Path(scratch)
        unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
