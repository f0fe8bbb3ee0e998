#!/usr/bin/env python3
"""Adds up CTest's JUnit files and prints the closing line: N passed, N failed, N skipped."""
import os
import sys
import xml.etree.ElementTree as xml


def count(paths):
    passed = failed = skipped = 0
    for path in filter(os.path.exists, paths):  # a stage that did not run has left no file
        for case in xml.parse(path).getroot().iter("testcase"):
            status = case.get("status")
            if status == "run":
                passed += 1
            elif status in ("notrun", "disabled"):
                skipped += 1
            else:
                failed += 1
    return passed, failed, skipped


if __name__ == "__main__":
    print("%d passed, %d failed, %d skipped" % count(sys.argv[1:]))
