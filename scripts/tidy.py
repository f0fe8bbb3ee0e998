#!/usr/bin/env python3
"""Runs clang-tidy-14 with the checks of .clang-tidy over src/ and tools/; any warning fails.

usage: scripts/tidy.py BUILD [FILE ...]

BUILD holds compile_commands.json; without files, all of its sources in src/ and tools/ are checked. Clang's own warnings
(-Wall -Wextra) count too. A source that was clean is not checked again until its preprocessed text, its flags or
.clang-tidy change: results are kept in ROOTDK_TIDY_CACHE (default ~/.cache/rootdk/tidy), and a second clone finds them.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys

SOURCE = pathlib.Path(__file__).resolve().parents[1]
CACHE = pathlib.Path(os.environ.get("ROOTDK_TIDY_CACHE", pathlib.Path.home() / ".cache" / "rootdk" / "tidy"))
TIDY, CLANG = "clang-tidy-14", "clang++-14"


def compiler_flags(entry):
    """The flags of a compile command, without launcher, compiler, output and input."""
    words = shlex.split(entry["command"])
    compiler = next(i for i, word in enumerate(words) if word.endswith(("c++", "g++", "clang++", "g++-12", "clang++-14")))
    flags, skip = [], False
    for word in words[compiler + 1:]:
        if skip or word == "-c" or word == entry["file"]:
            skip = False
        elif word in ("-o", "-MF", "-MT"):
            skip = True
        elif not word.startswith("-Wno-maybe-uninitialized"):  # GCC's
            flags.append(word)
    return flags


def fingerprint(entry, flags):
    """Changes when anything does that clang-tidy sees, and not with the folder that the project lies in."""
    text = subprocess.run([CLANG, *flags, "-E", "-P", "-C", entry["file"]], cwd=entry["directory"], capture_output=True, check=True)
    digest = hashlib.sha256(text.stdout)
    digest.update(" ".join(flags).replace(str(SOURCE), ".").encode())
    digest.update((SOURCE / ".clang-tidy").read_bytes())
    digest.update(subprocess.run([TIDY, "--version"], capture_output=True, check=True).stdout)
    return digest.hexdigest()


def check(entry):
    """What clang-tidy has to say about one source; nothing when it is clean."""
    flags = compiler_flags(entry)
    try:
        known = CACHE / fingerprint(entry, flags)
    except subprocess.CalledProcessError as failure:
        return failure.stderr.decode()
    if known.exists():
        return ""
    result = subprocess.run([TIDY, "--quiet", "--warnings-as-errors=*", entry["file"], "--", *flags], cwd=entry["directory"],
                            capture_output=True, text=True)
    if result.returncode == 0:
        known.touch()
        return ""
    return result.stdout + result.stderr


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    build, wanted = pathlib.Path(sys.argv[1]), {pathlib.Path(name).resolve() for name in sys.argv[2:]}
    CACHE.mkdir(parents=True, exist_ok=True)
    entries = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["file"])
        in_scope = path.suffix == ".cpp" and any(folder in path.parents for folder in (SOURCE / "src", SOURCE / "tools"))
        if in_scope and (not wanted or path in wanted):
            entries[path] = entry
    if not entries:
        sys.exit(f"scripts/tidy.py: {build}/compile_commands.json names none of these sources")
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("JOBS", os.cpu_count()))) as pool:
        # The heavy ones (JSON, command-line parsing) first, so that no core waits for them at the end.
        order = sorted(entries, key=lambda path: (SOURCE / "src" in path.parents, str(path)))
        for path, report in zip(order, pool.map(check, (entries[path] for path in order))):
            if report:
                failed += 1
                print(f"-- {path.relative_to(SOURCE)}\n{report}")
    print(f"clang-tidy: {len(entries) - failed} sources clean, {failed} not")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
