#!/usr/bin/env python3
"""Checks what a compiler does not: who includes whom, what a fast path must not do, what a kernel for GPUs must not
call, and that CMake knows every file.

usage: check_structure.py ROOT. Prints one line a violation and exits with 1 if there is any.
"""
import pathlib
import re
import sys

FOLDERS = ["numa", "kernels", "rdma", "engine", "tools", "tests"]
MAY_INCLUDE = {
    "numa": {"numa"},
    "kernels": {"kernels"},
    "rdma": {"rdma", "numa"},
    "engine": {"engine", "rdma", "kernels", "numa"},
    "tools": {"tools", "engine", "rdma", "kernels", "numa"},
    "tests": set(FOLDERS),
}
# The rooms of engine/, and which others each may include; "" are the public headers, which include nothing of ours.
# Whatever is not named here is an upward arrow, or would close a circle.
ENGINE_ROOMS = {
    "api": {"start", "request", "text", "model", "record", "public"},
    "start": {"request", "homes", "pipeline", "schedule", "spart", "rpart", "text", "model", "record"},
    "request": {"pipeline", "text", "model", "record"},
    "homes": {"pipeline", "spart", "rpart"},
    "pipeline": {"schedule", "spart", "rpart", "record"},
    "spart": {"rpart", "model", "record"},
    "rpart": set(),
    "text": {"model"},
    "schedule": set(),
    "model": set(),
    "record": set(),
    "public": set(),
    # Measuring rigs, which no other room includes.
    "bench": {"start", "schedule", "spart", "rpart", "model"},
}
PUBLIC_HEADERS = "engine/api/fastdecode/"
# tools/ reaches the engine through the public interface alone, and the measuring rigs.
TOOLS_MAY_INCLUDE_OF_ENGINE = ("fastdecode/", "engine/bench/")
# The server knows the engine by its public headers alone, so that another one can stand behind them.
SERVER = "tools/serve/"
SERVER_MAY_INCLUDE = (SERVER, "fastdecode/fastdecode.h")
# What the service manager tells its children in no other way.
MAY_READ_ENVIRONMENT = {"tools/serve_command.cc"}
# kernels/ may use the always-on check, which is part of the language here.
ALWAYS_ALLOWED = {"numa/check.h"}

# A file whose first line is this runs per step or per hop, and must not do any of the following.
FAST_PATH_MARK = "// FAST PATH"
# Those that must have it beside what is called *_fastpath.
FAST_PATH_FILES = {f"{stem}.{suffix}" for suffix in ("h", "cc") for stem in (
    "engine/pipeline/batcher", "engine/schedule/placement", "engine/schedule/step_cost_tracker",
    "engine/schedule/step_model", "engine/rpart/plan", "engine/rpart/sequence_table",
    "engine/rpart/micro_batch", "engine/rpart/roster", "engine/rpart/shared_prefixes")}
# A line that may all the same says when it runs or why it is no growth, in a comment of these words behind it.
FAST_PATH_EXCUSES = re.compile(r"//.*\b(at start|reserved|once a sequence|it shrinks)\b")
# Text is made for a refusal, which ends a link.
FAST_PATH_REFUSAL = re.compile(r"\breturn absl::\w+Error\(")
FAST_PATH_FORBIDDEN = [
    (r"\bnew\b|\bmake_unique\b|\bmake_shared\b|\bmalloc\b|\bcalloc\b|\brealloc\b", "allocates"),
    (r"\.(push_back|emplace_back|emplace|resize|reserve|assign)\(", "may allocate"),
    (r"\bstd::(vector|deque|map|unordered_map|list|function|shared_ptr)\b\s*<[^>]*>\s+\w+\s*[;({=]", "makes a container"),
    (r"\bmutex\b|\block_guard\b|\bunique_lock\b|\bscoped_lock\b|\bcondition_variable\b", "locks"),
    (r"->Log\(|\bLog\(|\bstd::c(out|err)\b|\bf?printf\b", "logs"),
    (r"\bthrow\b|\btry\b", "throws"),
    (r"\bstd::string\b|\bStrCat\b|\bStrFormat\b|\bto_string\b", "touches a string"),
    (r"\bsleep\b|\busleep\b|\bnanosleep\b|\bsched_yield\b|\bsyscall\b|\bioctl\b|\bmmap\b|\bpoll\(|\bopen\(", "enters the kernel"),
    (r"\bgetenv\b", "reads the environment"),
]
SUFFIXES = {".h", ".hpp", ".cc", ".cu", ".cuh"}


def strip_comments(text):
    """Comments and string literals become blanks; line numbers stay."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.S)


def engine_room(path):
    """Of a path that begins with engine/; None if the file lies loose."""
    if path.startswith(PUBLIC_HEADERS):
        return "public"
    parts = path.split("/")
    return parts[1] if len(parts) > 2 else None


def find_circle(arrows):
    """A room that can be reached from itself; None if there is none."""
    def reaches(room, goal, seen):
        return any(to == goal or (to not in seen and reaches(to, goal, seen | {to})) for to in arrows[room])
    return next((room for room in arrows if reaches(room, room, {room})), None)


def check_rooms(relative, number, included):
    room, to = engine_room(relative), engine_room(included)
    if to != room and to not in ENGINE_ROOMS.get(room, set()):
        yield f"{relative}:{number}: engine/{room} must not include {included}"


def check_includes(path, root, text):
    folder = path.relative_to(root).parts[0]
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r'\s*#\s*include\s+["<]([^">]+)[">]', line)
        if not match:
            continue
        included = match.group(1)
        if folder != "tests" and '"' in line and ("/" not in included or included.startswith(".")):
            yield f"{path.relative_to(root)}:{number}: {included} is not named from the top folder on"
            continue
        if included.startswith("fastdecode/"):  # as whoever installs it includes it
            included = "engine/api/" + included
        elif "<" in line.split("include")[1]:
            continue
        target = included.split("/")[0]
        if target not in FOLDERS or included in ALWAYS_ALLOWED:
            continue
        if target not in MAY_INCLUDE[folder]:
            yield f"{path.relative_to(root)}:{number}: {folder}/ must not include {included}"
        if folder == "engine" and target == "engine":
            yield from check_rooms(path.relative_to(root).as_posix(), number, included)
        if folder == "tools" and target == "engine" and not included.removeprefix("engine/api/").startswith(
                TOOLS_MAY_INCLUDE_OF_ENGINE):
            yield f"{path.relative_to(root)}:{number}: tools/ uses the public interface, not {included}"
        if path.relative_to(root).as_posix().startswith(SERVER) and not included.removeprefix("engine/api/").startswith(
                SERVER_MAY_INCLUDE):
            yield f"{path.relative_to(root)}:{number}: {SERVER} uses itself and the public interface, not {included}"
        if not (root / included).exists():
            yield f"{path.relative_to(root)}:{number}: {included} does not exist"


def check_fast_path(path, root, text):
    if not text.startswith(FAST_PATH_MARK):
        if path.stem.endswith("_fastpath") or path.relative_to(root).as_posix() in FAST_PATH_FILES:
            yield f"{path.relative_to(root)}:1: it is a fast path, but the mark '{FAST_PATH_MARK}' is missing"
        return
    raw, lines = text.splitlines(), strip_comments(text).splitlines()
    for number, line in enumerate(lines, 1):
        grows = FAST_PATH_EXCUSES.search(raw[number - 1])
        refuses = FAST_PATH_REFUSAL.search(" ".join(lines[max(0, number - 2):number]))
        for pattern, what in FAST_PATH_FORBIDDEN:
            if what == "makes a container" and path.suffix == ".h":
                continue  # members, which grow where they are used
            if grows and what in ("may allocate", "allocates"):
                continue
            if re.search(pattern, line) and not (refuses and what == "touches a string"):
                yield f"{path.relative_to(root)}:{number}: a fast path {what}: {line.strip()}"


def check_device_bits(path, root, text):
    """kernels/bits.h says why."""
    relative = path.relative_to(root)
    if relative.as_posix() == "kernels/bits.h" or path.suffix == ".cc" or relative.parent.as_posix() not in {"kernels", "kernels/cuda"}:
        return
    for number, line in enumerate(strip_comments(text).splitlines(), 1):
        if re.search(r"\bstd::(has_single_bit|bit_(width|ceil|floor)|popcount|count[lr]_(zero|one)|rot[lr])\b", line):
            yield f"{relative}:{number}: nvcc compiles it wrongly, kernels/bits.h has what it may be: {line.strip()}"


def check_environment(path, root, text):
    if path.relative_to(root).as_posix() in MAY_READ_ENVIRONMENT:
        return
    for number, line in enumerate(strip_comments(text).splitlines(), 1):
        if re.search(r"\bgetenv\b", line):
            yield f"{path.relative_to(root)}:{number}: reads the environment; options come from the command line"


def names(cmake_text, relative, in_tests):
    """Whether a CMakeLists.txt names a source file; in tests/ also by the stem that a function there completes."""
    candidates = [relative.as_posix()]
    if in_tests:
        candidates += [relative.stem, relative.stem.removesuffix("_fuzz"), relative.stem.removesuffix("_relacy_test")]
    return any(re.search(rf"(^|[\s(\"/}}]){re.escape(c)}($|[\s)\"])", cmake_text, flags=re.M) for c in candidates)


def check_listed(root):
    """Every .cc and .cu is named in the CMakeLists.txt of its folder or of one above."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in {".cc", ".cu"}:
                continue
            listed = False
            parent = path.parent
            while parent != root.parent and not listed:
                cmake = parent / "CMakeLists.txt"
                if cmake.exists():
                    listed = names(cmake.read_text(), path.relative_to(parent), in_tests=folder == "tests")
                parent = parent.parent
            if not listed:
                yield f"{path.relative_to(root)}: no CMakeLists.txt names it"


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    violations = list(check_listed(root))
    circle = find_circle(ENGINE_ROOMS)
    if circle:
        violations.append(f"check_structure.py: the rooms of engine/ may include each other in a circle through {circle}")
    files = 0
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            files += 1
            text = path.read_text()
            if folder == "engine" and engine_room(path.relative_to(root).as_posix()) not in ENGINE_ROOMS:
                violations.append(f"{path.relative_to(root)}: lies in no room of engine/ that check_structure.py knows")
            violations += check_includes(path, root, text)
            violations += check_fast_path(path, root, text)
            violations += check_device_bits(path, root, text)
            if folder != "tests":
                violations += check_environment(path, root, text)
    for violation in violations:
        print(violation)
    print(f"{files} files, {len(violations)} violations")
    if files < 50:
        print("too few files: is this the root?")
        return 1
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
