"""The checkers refuse what they should: each test feeds one violation to a small tree."""

import contextlib
import io
import pathlib
import re
import subprocess
import tempfile
import unittest

import check_format
import check_layering
import check_optimizers
from check_style import Checker
from cxx_functions import functions

HEADER = "// What it is for.\n#pragma once\n"
GOOD_TREE = {
    "common/base/a.h": HEADER,
    "common/base/a.cc": '#include "common/base/a.h"\n',
    "common/base/CMakeLists.txt": "luwu_library(x SOURCES a.cc)\n",
}


class TreeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for path, text in GOOD_TREE.items():
            self.write(path, text)

    def write(self, path, text):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def expect_one(self, problems, wanted):
        self.assertEqual(len(problems), 1, problems)
        self.assertIn(wanted, problems[0])


class OptimizersTest(TreeTest):
    LISTS = {
        "common/tensor/job_spec.h": "enum class OptimizerKind : uint8_t {\n  kUnspecified = 0,\n"
                                    "  kAdamW = 1,\n  kSgd = 2,  // plain\n};\n",
        "proto/luwu/v1/types.proto": "enum OptimizerKind {\n  OPTIMIZER_KIND_ADAMW = 1;\n"
                                     "  OPTIMIZER_KIND_SGD = 2;\n}\n",
        "client/include/luwu/luwu.h": "typedef enum luwu_optimizer {\n  LUWU_ADAMW = 1,\n"
                                      "  LUWU_SGD = 2\n} luwu_optimizer;\n",
        "client/python/luwu/optimizers.py": "KINDS: dict[type, int] = {AdamW: 1, SGD: 2}\n",
        "server/optim/registry.cc": "kOptimizers[] = {\n    {OptimizerKind::kAdamW, a},\n"
                                    "    {OptimizerKind::kSgd, s},\n};\n",
        "common/tensor/optimizer_spec.cc":
            "OptimizerName(OptimizerKind kind) {\n    case OptimizerKind::kAdamW:\n"
            "      return \"adamw\";\n    case OptimizerKind::kSgd:\n      return \"sgd\";\n}\n",
    }

    def setUp(self):
        super().setUp()
        for path, text in self.LISTS.items():
            self.write(path, text)

    def test_equal_lists_are_clean(self):
        self.assertEqual(check_optimizers.check(self.root), [])

    def test_an_optimizer_that_one_list_lacks_is_named(self):
        for path, text in self.LISTS.items():
            with self.subTest(path):
                self.write(path, re.sub("(?i)sgd", "Rprop", text))
                found = check_optimizers.check(self.root)
                self.assertTrue(any("lacks the optimizer 'rprop'" in each for each in found))
                self.assertTrue(any("lacks the optimizer 'sgd'" in each for each in found))
                self.write(path, text)

    def test_another_number_is_named(self):
        self.write("client/python/luwu/optimizers.py",
                   self.LISTS["client/python/luwu/optimizers.py"].replace("2", "3"))
        self.expect_one(check_optimizers.check(self.root), "'sgd' is 3")

    def test_a_list_that_is_gone_is_named(self):
        self.write("proto/luwu/v1/types.proto", "")
        self.expect_one(check_optimizers.check(self.root), "types.proto:1: its list")


class LayeringTest(TreeTest):
    def problems_with(self, path, text):
        self.write(path, text)
        return check_layering.check(self.root)

    def test_good_tree_is_clean(self):
        self.assertEqual(check_layering.check(self.root), [])

    def test_arrows_point_one_way(self):
        self.write("common/tensor/t.h", HEADER)
        include = '#include "common/tensor/t.h"\n'
        self.assertEqual(self.problems_with("common/wire/w.h", include), [])
        found = self.problems_with("common/base/b.h", include)
        self.expect_one(found, "common/base must not include common/tensor")

    def test_client_and_server_are_strangers(self):
        self.write("server/step/job.h", HEADER)
        self.write("client/src/c.h", HEADER)
        found = self.problems_with("client/src/d.cc", '#include "server/step/job.h"\n')
        self.expect_one(found, "client/src must not include server/step")
        (self.root / "client/src/d.cc").unlink()
        found = self.problems_with("server/step/d.cc", '#include "client/src/c.h"\n')
        self.expect_one(found, "server/step must not include client/src")

    def test_lower_server_modules_do_not_look_up(self):
        self.write("server/service/s.h", HEADER)
        found = self.problems_with("server/step/d.cc", '#include "server/service/s.h"\n')
        self.expect_one(found, "server/step must not include server/service")
        (self.root / "server/step/d.cc").unlink()
        self.write("server/optim/o.h", HEADER)
        include = '#include "server/optim/o.h"\n'
        self.assertEqual(self.problems_with("server/step/e.cc", include), [])

    def test_third_party_stays_where_it_belongs(self):
        for include, path in [
            ("<grpcpp/grpcpp.h>", "server/step/x.cc"),
            ('"luwu/v1/jobs.pb.h"', "client/src/push.cc"),
            ("<toml++/toml.h>", "server/config.cc"),
            ("<hwy/highway.h>", "common/wire/x.cc"),
            ("<CLI/CLI.hpp>", "server/daemon.cc"),
            ("<openssl/hmac.h>", "common/rpc/x.cc"),
            ("<isa-l/crc.h>", "common/wire/x.cc"),
            ("<gtest/gtest.h>", "common/base/x.cc"),
        ]:
            found = self.problems_with(path, f"#include {include}\n")
            self.expect_one(found, f"{path}:1: {include} may be included from")
            (self.root / path).unlink()
        self.assertEqual(self.problems_with("client/src/session_rpc.cc",
                                            "#include <grpcpp/grpcpp.h>\n"), [])

    def test_circles_are_found(self):
        self.write("common/base/p.h", '#include "common/base/q.h"\n')
        self.write("common/base/q.h", '#include "common/base/r.h"\n')
        found = self.problems_with("common/base/r.h", '#include "common/base/p.h"\n')
        self.expect_one(found, "includes itself through")

    def test_unknown_modules_and_files(self):
        found = self.problems_with("server/nowhere/x.cc", "")
        self.expect_one(found, "belongs to no module")
        (self.root / "server/nowhere/x.cc").unlink()
        found = self.problems_with("common/base/b.cc", '#include "common/base/gone.h"\n')
        self.expect_one(found, "does not exist")
        found = self.problems_with("common/base/b.cc", '#include "a.h"\n')
        self.expect_one(found, "path from the root")


class StyleTest(TreeTest):
    def problems_with(self, path, text, in_cmake=True):
        self.write(path, text)
        name = pathlib.PurePosixPath(path).name
        if in_cmake and path.endswith((".cc", ".c")) and name != "a.cc":
            self.write(str(pathlib.PurePosixPath(path).parent / "CMakeLists.txt"),
                       f"luwu_library(x SOURCES {name} a.cc)\n")
        return Checker(self.root).run()

    def test_good_tree_is_clean(self):
        self.assertEqual(Checker(self.root).run(), [])

    def test_banned_names(self):
        for rule, line in {
            "std-format": "auto s = std::format(x);",
            "std-views": "for (int i : std::views::iota(0, 3)) {}",
            "sleep": "std::this_thread::sleep_for(x);",
            "absl-mutex": "absl::Mutex mutex;",
            "absl-string-view": "void F(absl::string_view s);",
            "std-mutex": "std::mutex mutex;",
            "raw-new": "int* p = new int;",
            "reinterpret-cast": "auto* p = reinterpret_cast<int*>(q);",
            "detached-thread": "thread.detach();",
            "plain-assert": "assert(x);",
            "using-namespace": "using namespace std;",
            "std-rand": "int x = rand();",
            "print": 'std::printf("x");',
        }.items():
            self.expect_one(self.problems_with("common/base/b.cc", line + "\n"), f"[{rule}]")

    def test_delete_expressions_but_not_deleted_functions(self):
        self.expect_one(self.problems_with("common/base/b.cc", "void F() { delete p; }\n"),
                        "[raw-new]")
        good = "A(const A&) = delete;\nstd::unique_ptr<A> p(new A(1));\n"
        self.assertEqual(self.problems_with("common/base/b.cc", good), [])

    def test_comments_and_strings_do_not_count(self):
        text = '// std::format is banned\nconst char* s = "std::mutex";\n/* new\n int */\n'
        self.assertEqual(self.problems_with("common/base/b.cc", text), [])

    def test_lengths(self):
        self.expect_one(self.problems_with("common/base/b.cc", "\n" * 501), "[file-length]")
        self.expect_one(self.problems_with("common/base/b.cc", "//" + "x" * 99 + "\n"), "[columns]")
        long_body = "int F(int a) {\n" + "  a += 1;\n" * 69 + "  return a;\n}\n"
        self.expect_one(self.problems_with("common/base/b.cc", long_body), "F has 72 lines")
        many = "int F(int a, int b, int c, int d, int e, int f) { return a; }\n"
        self.expect_one(self.problems_with("common/base/b.cc", many), "F has 6 parameters")
        self.write("common/base/b.cc", "")
        body = "def f():\n" + "    pass\n" * 71
        self.expect_one(self.problems_with("scripts/x.py", body), "f has 72 lines")

    def test_headers(self):
        self.write("common/base/a.cc", '#include "common/base/a.h"\n#include "common/base/b.h"\n')
        self.expect_one(self.problems_with("common/base/b.h", "#pragma once\n"), "[header-comment]")
        self.expect_one(self.problems_with("common/base/b.h", "// What.\n"), "[header-guard]")

    def test_a_source_includes_its_own_header_first(self):
        text = '#include <vector>\n#include "common/base/a.h"\n'
        self.expect_one(self.problems_with("common/base/a.cc", text), "[own-header-first]")

    def test_leftovers_and_paths(self):
        for line in ("// TODO: later", "// FIXME", "// not implemented"):
            self.expect_one(self.problems_with("common/base/b.cc", line + "\n"), "[leftover]")
        self.expect_one(self.problems_with("common/base/b.cc", "// see /home/me/x\n"),
                        "[machine-path]")

    def test_dead_files(self):
        found = self.problems_with("common/base/b.cc", "", in_cmake=False)
        self.expect_one(found, "no CMake file names this source")
        (self.root / "common/base/b.cc").unlink()
        self.expect_one(self.problems_with("common/base/b.h", HEADER), "no file includes")

    def test_blanks(self):
        self.expect_one(self.problems_with("common/base/b.cc", "int a; \n"), "[blank-at-end]")
        self.expect_one(self.problems_with("common/base/b.cc", "\tint a;\n"), "[tab]")
        self.expect_one(self.problems_with("common/base/b.cc", "int a;"), "[last-newline]")

    def test_allowed_entries_excuse_and_must_be_needed(self):
        self.write("tests/tidy/allowed.txt", "std-mutex common/base/b.cc for a reason\n")
        self.assertEqual(self.problems_with("common/base/b.cc", "std::mutex m;\n"), [])
        found = self.problems_with("common/base/b.cc", "int m;\n")
        self.expect_one(found, "excuses nothing")
        self.write("tests/tidy/allowed.txt", "std-mutex common/base/b.cc\n")
        self.assertEqual(len(self.problems_with("common/base/b.cc", "int m;\n")), 1)


class FunctionsTest(unittest.TestCase):
    def found(self, text):
        return [(f.name, f.first_line, f.last_line, f.parameters) for f in functions(text)]

    def test_finds_functions_and_only_those(self):
        text = """
namespace a {
struct S {
  int x = 0;
  S(int a, int b)
      : x(a), y{b} {
    if (a) { b = 1; }
  }
  bool operator()(std::map<int, int> m, int n) const { return m.size() > n; }
};
enum class E { kA };
const int kTable[] = {1, 2};
auto f = [](int x) { return x; };
void G() LUWU_REQUIRES(mutex) {
  for (;;) {
  }
}
}  // namespace a
"""
        expected = [("S", 5, 8, 2), ("operator()", 9, 9, 2), ("G", 14, 17, 0)]
        self.assertEqual(self.found(text), expected)


class FormatTest(TreeTest):
    def test_refuses_unformatted_files_and_fixes_them(self):
        self.write(".clang-format", "BasedOnStyle: Google\n")
        self.write("common/base/a.h", HEADER + "int   F ( ) ;\n")
        with contextlib.redirect_stdout(io.StringIO()) as output:
            self.assertEqual(check_format.check(self.root), 1)
            self.assertEqual(check_format.check(self.root, fix=True), 0)
            self.assertEqual(check_format.check(self.root), 0)
        self.assertIn("common/base/a.h: not formatted", output.getvalue())


class HeaderCheckTest(TreeTest):
    def build(self, header):
        self.write("h/good.h", HEADER + "#include <string>\nstd::string F();\n")
        self.write("h/x.h", header)
        module = pathlib.Path(__file__).resolve().parent / "HeaderCheck.cmake"
        self.write("CMakeLists.txt", f"""
cmake_minimum_required(VERSION 3.25)
project(P LANGUAGES CXX)
include({module})
luwu_check_headers(objects ROOT ${{PROJECT_SOURCE_DIR}} HEADERS h/good.h h/x.h)
""")
        for command in (["cmake", "-G", "Ninja", "-S", ".", "-B", "b"],
                        ["cmake", "--build", "b", "--target", "objects"]):
            run = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
            if run.returncode != 0:
                return run.stdout + run.stderr
        return ""

    def test_refuses_a_header_that_leans_on_others(self):
        self.assertIn("h/x.h", self.build(HEADER + "std::vector<int> F();\n"))

    def test_refuses_a_header_that_cannot_be_included_twice(self):
        self.assertIn("h/x.h", self.build("struct S {};\n"))

    def test_accepts_a_whole_header(self):
        self.assertEqual(self.build(HEADER + "#include <vector>\nstd::vector<int> F();\n"), "")


if __name__ == "__main__":
    unittest.main()
