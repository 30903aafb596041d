#!/usr/bin/env python3
"""That the rules of interface_layout.py find what they are for: a small made-up header, and what it may become.

usage: check_layout_test.py COMPILER
"""
import pathlib
import sys
import tempfile
import unittest

COMPILER = sys.argv.pop(1)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import interface_layout  # noqa: E402

HEADER = """
#ifndef MADE_UP_H_
#define MADE_UP_H_
#include <stddef.h>
#include <stdint.h>
#define FD_MOST 4
#define FD_THING_INIT {sizeof(fd_thing)}
typedef enum fd_kind {
  FD_FIRST = 1, /* of two, one more than none */
  FD_SECOND
} fd_kind;
typedef struct fd_handle fd_handle;
typedef void (*fd_sink)(void* user, const char* message);
typedef struct fd_pair {
  int32_t left;
  int32_t right;
} fd_pair;
typedef struct fd_thing {
  uint32_t struct_size;
  fd_kind kind;
  uint64_t start_ns, end_ns;
  const char* const* names;
  int (*done)(void* user, uint64_t bytes);
  uint8_t flag; /* and 7 bytes of nothing */
  uint64_t last[2];
} fd_thing;
fd_handle* fd_make(const fd_thing* thing, int level);
void fd_end(fd_handle* handle);
#endif
"""


class Layout(unittest.TestCase):
    frozen = None

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def measured(self, text):
        path = pathlib.Path(self.folder.name, "made_up.h")
        path.write_text(text)
        return interface_layout.measure(path, self.folder.name, COMPILER)

    def changed(self, old, new):
        self.assertEqual(HEADER.count(old), 1, old)
        return self.measured(HEADER.replace(old, new))

    def faults(self, old, new):
        if Layout.frozen is None:
            Layout.frozen = self.measured(HEADER)
        return list(interface_layout.growth_faults(Layout.frozen, self.changed(old, new)))

    def test_what_is_read(self):
        self.assertEqual(list(self.measured(HEADER).lines()), [
            "constant FD_MOST = 4", "constant FD_FIRST = 1", "constant FD_SECOND = 2",
            "struct fd_pair: 8 bytes", "    0 +4    left: int32_t", "    4 +4    right: int32_t",
            "struct fd_thing: 64 bytes", "    0 +4    struct_size: uint32_t", "    4 +4    kind: fd_kind",
            "    8 +8    start_ns: uint64_t", "   16 +8    end_ns: uint64_t", "   24 +8    names: const char* const*",
            "   32 +8    done: int (*)(void*, uint64_t)", "   40 +1    flag: uint8_t", "   48 +16   last: uint64_t[2]",
            "macro FD_THING_INIT: {sizeof(fd_thing)}", "enum fd_kind: 4 bytes", "handle fd_handle ",
            "type fd_sink: void (*)(void*, const char*)", "function fd_make: fd_handle* (const fd_thing*, int)",
            "function fd_end: void (fd_handle*)"])

    def test_what_may_change(self):
        other = "typedef struct fd_other {\n  int32_t one;\n} fd_other;\n"
        for old, new in [("  uint64_t last[2];", "  uint64_t last[2];\n  float* more;"),
                         ("  FD_SECOND\n", "  FD_SECOND,\n  FD_THIRD = 9\n"),
                         ("const fd_thing* thing,", "const fd_thing* given,"),
                         ("void fd_end", "void fd_pause(fd_handle* handle);\nvoid fd_end"),
                         ("#define FD_MOST 4", "#define FD_MOST (2 + 2)"),
                         ("of two, one more than none", "of three"),
                         ("typedef struct fd_handle", "#define FD_MORE 7\ntypedef struct fd_handle"),
                         ("typedef struct fd_pair", other + "typedef struct fd_pair")]:
            with self.subTest(new=new):
                self.assertEqual(self.faults(old, new), [])
                self.assertNotEqual(HEADER, HEADER.replace(old, new))

    def test_what_breaks_programs(self):
        for old, new, fault in [
                ("  fd_kind kind;\n", "", "fd_thing.kind: programs have this field, and it is gone"),
                ("  fd_kind kind;\n  uint64_t start_ns, end_ns;", "  uint64_t start_ns, end_ns;\n  fd_kind kind;",
                 "fd_thing.kind: it was"),
                ("start_ns, end_ns", "end_ns, start_ns",
                 "fd_thing.start_ns: it was '8 +8    start_ns: uint64_t', and is '16"),
                ("uint8_t flag;", "uint32_t flag;", "fd_thing.flag: it was"),
                ("uint64_t start_ns,", "double start_ns,", "fd_thing.start_ns: it was"),
                ("uint64_t last[2];", "uint64_t last[3];", "fd_thing.last: it was"),
                ("uint8_t flag;", "uint8_t flag, other;", "fd_thing.other: it lies at byte 41, within the 64 bytes"),
                ("int32_t right;", "int32_t right;\n  int32_t middle;",
                 "fd_pair: it has no struct_size, and had 8 bytes, not 12"),
                ("FD_FIRST = 1", "FD_FIRST = 3", "FD_FIRST: it was 1, and is 3"),
                ("  FD_FIRST = 1, /* of two, one more than none */\n", "", "FD_FIRST: it was 1, and is gone"),
                ("#define FD_MOST 4", "#define FD_MOST 5", "FD_MOST: it was 4, and is 5"),
                ("{sizeof(fd_thing)}", "{0}", "macro FD_THING_INIT: it was '{sizeof(fd_thing)}', and is '{0}'"),
                ("int level", "long level", "function fd_make: it was"),
                ("void fd_end(fd_handle* handle);", "", "function fd_end: it was 'void (fd_handle*)', and is 'gone'"),
                ("void (*fd_sink)(void* user,", "void (*fd_sink)(int level,", "type fd_sink: it was"),
                ("int (*done)(void* user,", "int (*done)(fd_handle* user,", "fd_thing.done: it was")]:
            with self.subTest(new=new):
                found = self.faults(old, new)
                self.assertTrue(found)
                self.assertIn(fault, found[0])

    def test_a_struct_that_is_gone(self):
        found = self.faults("typedef struct fd_pair {\n  int32_t left;\n  int32_t right;\n} fd_pair;\n", "")
        self.assertEqual(found, ["fd_pair: programs have this struct, and it is gone"])

    def test_structs_that_grow_consist_of_words(self):
        self.assertEqual(list(interface_layout.size_faults(self.measured(HEADER))), [])
        odd = "typedef struct fd_odd {\n  uint32_t struct_size;\n  uint32_t a[4];\n} fd_odd;\ntypedef struct fd_pair"
        self.assertEqual(list(interface_layout.size_faults(self.changed("typedef struct fd_pair", odd))),
                         ["fd_odd: it has 20 bytes, and begins with uint32_t struct_size"])

    def test_what_is_not_understood_is_an_error(self):
        for old, new in [("void fd_end", "union fd_all { int one; };\nvoid fd_end"),
                         ("  int32_t left;", "  unsigned left : 3;"),
                         ("void fd_end", "extern int fd_global;\nvoid fd_end"),
                         ("  fd_kind kind;", "  char *kind, *sort;")]:
            with self.subTest(new=new), self.assertRaises(interface_layout.LayoutError):
                self.changed(old, new)
        with self.assertRaisesRegex(interface_layout.LayoutError, "no C11"):
            self.changed("int32_t right;", "no_such_type right;")


if __name__ == "__main__":
    unittest.main()
