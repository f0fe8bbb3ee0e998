"""The native library's answers to what a page shows."""

import json
import math
import subprocess

from browser import check


class Native:
    """The same requests, answered by the native library."""

    def __init__(self, program, model):
        self.process = subprocess.Popen([program, model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def request(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        check("error" not in answer, f"native {request}: {answer.get('error')}")
        return answer

    def array(self, answer, name):
        return answer["arrays"][name]["values"]


def expect_close(page, native, what, tolerance=1e-5):
    check(len(page) == len(native), f"{what}: {len(page)} numbers, {len(native)} natively")
    for i, (a, b) in enumerate(zip(page, native)):
        if b is None:  # JSON has no infinity
            continue
        check(math.isfinite(a) and abs(a - b) <= tolerance * max(1.0, abs(b)), f"{what}[{i}]: {a} in the page, {b} natively")
