#!/usr/bin/env python3
"""Random configurations of the library against an oracle. tests/campaign/README.md says how to use it.

    campaign.py --count 20000                      fresh seeds, printed
    campaign.py --count 1000000 --state FILE       goes on where the last run with this file ended
    campaign.py --case '{...}'                     repeats one configuration
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "python")]
os.environ.setdefault("ROOTDK_LIBRARY", str(HERE.parents[1] / "build" / "src" / "librootdk.so"))

import workers  # noqa: E402
from single import Report, repeat, run_case  # noqa: E402
from state import State  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20000, help="configurations in all")
    parser.add_argument("--seed", type=int, help="not given: another one each time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--target", default="", help="only this target (explain() names them)")
    parser.add_argument("--kinds", default="attention,cache,merge", help="which kinds of configurations")
    parser.add_argument("--state", type=Path, help="a file to go on from; written as the campaign runs")
    parser.add_argument("--table", type=Path, help="adds a line to TABLE.jsonl and writes TABLE.md at the end")
    parser.add_argument("--seconds", type=float, help="ends after so long, with what was done")
    parser.add_argument("--stop-at", type=int, default=5, metavar="N", help="ends after N failures (default 5)")
    parser.add_argument("--no-shrink", action="store_true", help="prints failures as they were drawn")
    parser.add_argument("--case", help="repeats one configuration, given as JSON")
    parser.add_argument("--kept", action="store_true", help="repeats what once failed, on every target (kept.jsonl)")
    return parser.parse_args()


def run_kept(options):
    """Configurations that found something once, on all targets that take them."""
    targets = [options.target] if options.target else Report(device=options.device).targets
    failures = runs = 0
    for line in (HERE / "kept.jsonl").read_text().splitlines():
        for target in targets:
            report, case = Report(target, options.device), json.loads(line)
            if options.device == "cuda":
                if case.get("q_dtype") == "f64":  # it has no f64
                    continue
                case["place"] = "cuda"
            elif case["place"] == "cuda":  # found there
                case["place"] = "torch"
            problems = run_case(case, report)
            runs += not any("refused" in what for *_, what in report.counts)
            if problems:
                failures += 1
                print(f"\nFAILED on {target}:", *problems[:5], sep="\n  ")
                print("  " + repeat(case, argparse.Namespace(device=options.device, target=target)), flush=True)
    print(f"campaign: {runs} runs of kept configurations, {failures} failures")
    return 1 if failures or not runs else 0


def main():
    options = arguments()
    if options.case:
        problems = run_case(json.loads(options.case), Report(options.target, options.device))
        print("\n".join(problems) or "right")
        return 1 if problems else 0
    if options.kept:
        return run_kept(options)
    state = State.open(options)
    print(f"campaign: seed {state.seed}, {options.count} configurations, {state.done} of them done", flush=True)
    started = time.monotonic()
    for found in workers.run(state, options):
        print(f"\nFAILED configuration {found['index']} of seed {state.seed}:", *found["problems"][:5], sep="\n  ")
        print("  " + repeat(found["case"], options), flush=True)
    state.finish(time.monotonic() - started, options)
    print(state.summary(), flush=True)
    return 1 if state.failures else 0


if __name__ == "__main__":
    sys.exit(main())
