"""What lives how long: copies, the end of the interpreter with work under way or results held, and forked processes."""

import copy
import gc
import multiprocessing
import pickle
import subprocess
import sys

import numpy
import pytest
from conftest import random_arrays

import rootdk


def run(program):
    """The error output of a fresh interpreter, which must end well."""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stderr


def test_a_copy_of_a_cache_outlives_the_original():
    cache = rootdk.KvCache(kv_heads=2, head_dim=8, pages=4, dtype="f32")
    twin = copy.copy(cache)
    del cache
    gc.collect()
    x = numpy.ones((1, 2, 3, 8), numpy.float32)
    sequence = twin.open()
    sequence.append(x, x)
    numpy.testing.assert_array_equal(sequence.attend(x), x)


def test_a_copy_of_a_model_outlives_the_original():
    model = rootdk.load("builtin")
    expected = model.generate("ROMEO:", 4)
    twin = copy.copy(model)
    del model
    gc.collect()
    assert twin.generate("ROMEO:", 4) == expected


def test_a_stream_outlives_its_model():
    stream = rootdk.load("builtin").stream("ROMEO:", 4)
    gc.collect()
    assert len(list(stream)) == 4


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copied_buffer_has_its_own_memory(duplicate):
    buffer = rootdk.Buffer.empty((2, 3), 0)
    buffer.memoryview()[1, 2] = 5.0
    twin = duplicate(buffer)
    assert twin.address != buffer.address and twin.memoryview().tolist() == [[0, 0, 0], [0, 0, 5]]
    empty = duplicate(rootdk.Buffer.empty((2, 0), 0))
    assert empty.shape == (2, 0)


def test_exit_while_other_threads_generate():
    program = """
import rootdk, threading, time
model = rootdk.load("builtin")
begun = threading.Semaphore(0)
def work():
    while True:
        for _ in model.stream("ROMEO:", 100):
            begun.release()
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
for _ in range(10):
    begun.acquire()
"""
    assert run(program) == ""


def test_exit_waits_for_calls_under_way():
    program = """
import atexit, sys, threading, time
@atexit.register  # before the package's own, so that it runs after that
def late():
    gate.through(tell)("the exiting thread may call")
    threading.Thread(target=gate.through(tell), args=("too late",), daemon=True).start()
    time.sleep(0.1)
from rootdk._exit_gate import gate
begun = threading.Event()
def tell(text):
    print(text, file=sys.stderr)
def work():
    begun.set()
    time.sleep(0.3)
    tell("done")
threading.Thread(target=gate.through(work), daemon=True).start()
begun.wait()
"""
    assert run(program) == "done\nthe exiting thread may call\n"


def test_a_forked_child_does_not_wait_for_threads_of_its_parent():
    program = """
import os, threading
from rootdk._exit_gate import gate
begun, end = threading.Event(), threading.Event()
threading.Thread(target=gate.through(lambda: (begun.set(), end.wait())), daemon=True).start()
begun.wait()
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
    end.set()
"""
    assert run(program) == ""


@pytest.mark.parametrize("held", ["numpy.from_dlpack(buffer)", "buffer.__dlpack__()"])
def test_exit_with_memory_held_by_others(held):
    program = f"import sys, numpy, rootdk; buffer = rootdk.Buffer.empty((3,), 0); sys.held = {held}"
    assert run(program) == ""


def _same_in_child(q, expected):
    return numpy.array_equal(rootdk.attention(q, q, q, threads=3), expected)


def test_a_forked_process_has_threads_of_its_own():
    q = random_arrays(batch=2, q_len=128)[0]
    expected = rootdk.attention(q, q, q, threads=3)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(_same_in_child, (q, expected)).get(timeout=30)
