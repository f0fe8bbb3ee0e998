"""Promises of docs/reliability.md that are kept, or were once broken, on the Python side."""

import subprocess
import sys
import textwrap

import numpy
import pytest

import rootdk
from conftest import random_arrays


def cpu_targets():
    q = numpy.ones((1, 1, 1, 8), numpy.float32)
    return [name for name, refusal in rootdk.explain(q, q, q).candidates if not refusal]


def run_python(code):
    """Ends by itself, or the test runner ends it: a hang is a failure there."""
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("target", cpu_targets())
def test_an_infinite_bias_does_not_hide_what_is_not_finite_in_k(target):
    q, k, v = random_arrays(batch=1, heads=1, kv_heads=1)
    bias = numpy.zeros((7, 9), numpy.float32)
    bias[:, 4] = -numpy.inf
    k[0, 0, 4] = numpy.nan
    assert numpy.isnan(rootdk.attention(q, k, v, bias=bias, target=target)).all()
    mask = numpy.isfinite(bias)
    assert numpy.isfinite(rootdk.attention(q, k, v, mask=mask, target=target)).all()


@pytest.mark.parametrize("target", [name for name in cpu_targets() if name != "amx"])
def test_a_value_that_is_not_finite_changes_no_bit_of_rows_that_do_not_see_it(target):
    q, k, v = random_arrays(batch=1, heads=2, kv_heads=2, q_len=70, kv_len=300, head_dim=32, value_dim=40)
    right = rootdk.attention(q, k, v, causal=True, target=target)
    for bad in (numpy.nan, numpy.inf):
        v[0, :, 297] = bad  # seen by the last three rows
        ours = rootdk.attention(q, k, v, causal=True, target=target)
        assert numpy.array_equal(ours[:, :, :-3], right[:, :, :-3])
        assert not numpy.isfinite(ours[:, :, -3:]).any()


def test_out_of_another_kind_is_a_type_error():
    q, k, v = random_arrays()
    for out in ([[1.0]], "out", 3, memoryview(numpy.empty(4))):
        with pytest.raises(TypeError, match="q is a NumPy array but out is a"):
            rootdk.attention(q, k, v, out=out)


def test_a_fork_waits_for_a_cache_that_another_thread_is_in():
    done = run_python(
        """
        import os, threading, numpy, rootdk
        cache = rootdk.KvCache(kv_heads=4, head_dim=64, pages=64, dtype="f32")
        sequence = cache.open()
        rows = numpy.ones((1, 4, 2000, 64), numpy.float32)
        sequence.append(rows, rows)
        ending = threading.Event()

        def work():
            while not ending.is_set():
                sequence.attend(rows[:, :, :100])

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(6):
            child = os.fork()
            if child == 0:
                sequence.attend(rows[:, :, :1])
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        ending.set()
        thread.join()
        print("done")
        """
    )
    assert done.stdout == "done\n", done.stderr


def test_ctrl_c_ends_an_inspection():
    done = run_python(
        """
        import os, signal, threading, rootdk
        model = rootdk.load("builtin")
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            rootdk.inspect(model, [1] * 40000, threads=1)
            print("came to its end")
        except KeyboardInterrupt:
            print("interrupted")
        # What comes after is as before.
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        rootdk.inspect(model, [1] * 40)
        """
    )
    assert done.stdout == "interrupted\n", done.stderr


def test_a_handler_of_the_program_is_left_alone():
    done = run_python(
        """
        import os, signal, threading, rootdk
        seen = []
        signal.signal(signal.SIGINT, lambda *_: seen.append(1))
        model = rootdk.load("builtin")
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        rootdk.inspect(model, [1] * 5000, threads=1)
        import time
        while not seen:
            time.sleep(0.01)
        print("seen")
        """
    )
    assert done.stdout == "seen\n", done.stderr
