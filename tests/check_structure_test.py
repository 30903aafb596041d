#!/usr/bin/env python3
"""That check_structure.py finds what it is for: each file as it is, with one fault more.

usage: check_structure_test.py ROOT
"""
import pathlib
import sys
import unittest

ROOT = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(ROOT / "tests"))
import check_structure  # noqa: E402


class Structure(unittest.TestCase):
    def violations(self, file, text):
        return [*check_structure.check_includes(ROOT / file, ROOT, text), *check_structure.check_fast_path(ROOT / file, ROOT, text)]

    def with_line(self, file, line):
        text = (ROOT / file).read_text()
        self.assertEqual(self.violations(file, text), [])
        return self.violations(file, f"{text}{line}\n")

    def test_arrows(self):
        for file, included in [("engine/rpart/home.h", "engine/pipeline/pipeline.h"), ("engine/schedule/placement.h", "engine/model/model_spec.h"),
                               ("engine/pipeline/batcher.h", "engine/request/request_desk.h"), ("engine/homes/homes.h", "engine/start/options.h"),
                               ("engine/start/engine.h", "engine/bench/gpu_bench.h"), ("kernels/gemm.h", "rdma/link.h")]:
            with self.subTest(file=file):
                found = self.with_line(file, f'#include "{included}"')
                self.assertEqual(len(found), 1, found)
                self.assertIn(f"must not include {included}", found[0])
        for file in "engine/record/event.h", "engine/spart/spart.h":
            found = self.with_line(file, "#include <fastdecode/fastdecode.h>")
            self.assertIn("must not include engine/api/fastdecode/fastdecode.h", "".join(found))
        found = self.with_line("tools/answer.h", '#include "engine/start/engine.h"')
        self.assertIn("tools/ uses the public interface", "".join(found))
        for included in "tools/engine_flags.h", "numa/clock.h":
            found = self.with_line("tools/serve/server.h", f'#include "{included}"')
            self.assertIn(f"tools/serve/ uses itself and the public interface, not {included}", "".join(found))

    def test_the_rooms_make_no_circle(self):
        self.assertIsNone(check_structure.find_circle(check_structure.ENGINE_ROOMS))
        self.assertIsNotNone(check_structure.find_circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}))

    def test_loose_files(self):
        for loose in "engine/loose.h", "engine/attic/old.h":
            self.assertNotIn(check_structure.engine_room(loose), check_structure.ENGINE_ROOMS)
        self.assertEqual(check_structure.engine_room("engine/rpart/home.h"), "rpart")

    def test_fast_paths(self):
        for file in "engine/pipeline/batcher.cc", "engine/rpart/roster.cc", "engine/rpart/hop_work_fastpath.cc", "engine/schedule/placement.cc":
            for line, what in [("auto* p = new int;", "allocates"), ("rows.push_back(1);", "may allocate"), ("std::lock_guard lock(m);", "locks"),
                               ('auto s = absl::StrCat("a");', "touches a string"), ("syscall(1);", "enters the kernel")]:
                with self.subTest(file=file, line=line):
                    found = self.with_line(file, line)
                    self.assertEqual(len(found), 1, found)
                    self.assertIn(f"a fast path {what}", found[0])
        self.assertEqual(self.with_line("engine/rpart/plan.cc", "rows.push_back(1);  // reserved"), [])
        self.assertEqual(len(self.with_line("engine/rpart/plan.cc", "syscall(1);  // reserved")), 1)
        self.assertEqual(self.with_line("engine/rpart/home.cc", "auto* p = new int;"), [])

    def test_the_mark_is_not_forgotten(self):
        for file in "engine/rpart/home_loop_fastpath.cc", "engine/rpart/plan.cc", "engine/pipeline/batcher.h":
            text = (ROOT / file).read_text().removeprefix("// FAST PATH")
            self.assertIn("the mark '// FAST PATH' is missing", "".join(self.violations(file, text)))


if __name__ == "__main__":
    unittest.main()
