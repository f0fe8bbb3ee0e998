#!/usr/bin/env python3
"""Checks the campaign itself: each patch of mutations/ breaks a kernel on purpose, and the campaign must find it.

A copy of the tree in build/mutations/ is patched, its library built, and up to 20,000 configurations of a fresh seed
are run on it. Prints a table, and ends with 1 where a broken kernel was not found.

    tests/campaign/mutate.py --check        whether the patches still fit
    tests/campaign/mutate.py [NAME...]      all of them, or those whose names contain one of these
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "mutations"
TREE = PLACE / "tree"
BUILD = TREE / "build"  # where a checkout has it, so that ccache knows what is the same
CASES = 20000


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], text=True, capture_output=True, **options)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def copy_tree():
    """The tree as it is now; files that did not change keep their times, so that little is rebuilt."""
    names = run("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).splitlines()
    for name in names:
        source, target = ROOT / name, TREE / name
        if not source.is_file():
            continue
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def build(jobs):
    run("cmake", "--build", BUILD, "--target", "src/librootdk.so", "--parallel", jobs)  # "rootdk" is the program


def configurations_until_found(options, name):
    """(how many configurations it took, the first problem), or (None, "")."""
    library = next(BUILD.rglob("librootdk.so"))
    kinds = ["--kinds", options.kinds] if options.kinds else []
    command = [sys.executable, str(ROOT / "tests" / "campaign" / "campaign.py"), "--count", str(CASES)]
    command += ["--stop-at", "1", "--no-shrink", "--jobs", str(options.jobs), *kinds]
    done = subprocess.run(command, text=True, capture_output=True, env=dict(os.environ, ROOTDK_LIBRARY=str(library)))
    (PLACE / f"{name}.log").write_text(done.stdout + done.stderr)
    found = re.search(r"FAILED configuration (\d+) of seed (\d+):\n  (.*)", done.stdout)
    return (int(found[1]) + 1, int(found[2]), found[3]) if found else (None, 0, "")


def check(patches):
    stale = []
    for patch in patches:
        command = ["patch", "-p1", "--dry-run", "--force", "-i", str(patch)]
        if subprocess.run(command, cwd=ROOT, capture_output=True).returncode:
            stale.append(patch.name)
    print(f"{len(patches) - len(stale)} of {len(patches)} patches fit the sources", *stale)
    return 1 if stale or not patches else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--check", action="store_true", help="only says whether every patch fits the sources")
    parser.add_argument("--kinds", default="", help="as in campaign.py; all by default")
    options = parser.parse_args()
    patches = sorted((Path(__file__).parent / "mutations").glob("*.patch"))
    patches = [p for p in patches if not options.names or any(name in p.stem for name in options.names)]
    if options.check:
        return check(patches)
    copy_tree()
    if not (BUILD / "build.ninja").exists():
        run("cmake", "-S", TREE, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DROOTDK_TESTS=OFF",
            "-DROOTDK_CUDA=OFF")  # fmt: skip
    lines, missed = [], 0
    print("| broken on purpose | found after | as |\n| --- | ---: | --- |", flush=True)
    for patch in patches:
        copy_tree()  # what the last patch changed
        run("patch", "-p1", "-i", patch, cwd=TREE)
        build(options.jobs)
        count, seed, problem = configurations_until_found(options, patch.stem)
        missed += count is None
        line = f"| {patch.stem} | {count or 'not found'} | {problem[:90]} |"
        lines.append(line)
        print(line, flush=True)
    copy_tree()
    (PLACE / "table.md").write_text("\n".join(lines) + "\n")
    print(f"{len(patches) - missed} of {len(patches)} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
