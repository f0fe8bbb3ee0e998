#!/usr/bin/env python3
"""rootdk beside PyTorch's attention on the shapes of real models, as users call it and under CUDA graphs, and what a call
costs the host.

    bench/compare_torch.py --device cuda --models [--seconds 480] [--rounds 25] [--json FILE] [--only ViT-B,BERT] [--shapes FILE]
    bench/compare_torch.py --device cpu --models     small shapes of the same kinds, one thread, f32

On CUDA the others are cuDNN and FlashAttention-2 through scaled_dot_product_attention; ratio = the fastest of them over
ours, above 1.00 rootdk wins. Contenders take turns, in a new order every round; figures are medians, in brackets the best.
mode eager: calls as users make them, host time included. mode graph: the same calls captured in a CUDA graph, kernels alone.
pass both: the forward pass and the gradients of q, k and v. What fails is named, and the rest goes on; a shape for which
there was no time left is named, too. The JSON file is written anew after every line.
"""
import argparse
import contextlib
import functools
import os
import pathlib
import sys
import threading
import time
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

import model_shapes
from model_shapes import C_FUNCTION, Deadline, Report, calls_a_measure, interleaved

MODES, PASSES = ("eager", "graph"), ("forward", "both")
# Relative differences in the norm between rootdk and another contender, by type and pass: rounding alone stays below.
LIMITS = {"f32": (1e-4, 1e-3), "f16": (5e-3, 2e-2), "bf16": (2e-2, 5e-2)}
HOST_SHAPE = (1, 2, 64, 64)
COMPILE_SECONDS = 90.0


class Cuda:
    """Time on the GPU's own clock."""

    name, modes = "cuda", MODES

    def __init__(self, torch):
        self.torch = torch

    def synchronize(self):
        self.torch.cuda.synchronize()

    def seconds(self, call, count):
        """Seconds of one of `count` calls. One call goes ahead, so that the first is launched while the GPU works."""
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        call()
        start.record()
        for _ in range(count):
            call()
        end.record()
        self.torch.cuda.synchronize()
        return 1e-3 * start.elapsed_time(end) / count

    def graph(self, call, count):
        """A function that runs `count` calls from one CUDA graph. It keeps what the graph points to."""
        cuda = self.torch.cuda
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            for _ in range(3):
                call()
        cuda.current_stream().wait_stream(stream)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, stream=stream):
            for _ in range(count):
                call()

        def replay(kept=call):
            graph.replay()

        return replay

    def free(self):
        self.torch.cuda.empty_cache()

    def facts(self):
        cuda = self.torch.version.cuda
        return {"device": self.torch.cuda.get_device_name(), "cuda": cuda, "cudnn": self.torch.backends.cudnn.version()}


class Cpu:
    """One thread, on the clock of the process."""

    name, modes = "cpu", ("eager",)

    def __init__(self, torch):
        torch.set_num_threads(1)

    def synchronize(self):
        pass

    def seconds(self, call, count):
        call()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - begin) / count

    def free(self):
        pass

    def facts(self):
        return {"device": "cpu"}


class Contender:
    """A function with PyTorch's signature, and the context in which it is to run."""

    def __init__(self, function, context=contextlib.nullcontext):
        self.function, self.context = function, context


def contenders_on(device_name):
    """By name. PyTorch's kernels are chosen around the calls that are timed: the choice costs them nothing."""
    import torch

    import rootdk.torch

    theirs = torch.nn.functional.scaled_dot_product_attention
    ours = {"rootdk": Contender(rootdk.torch.scaled_dot_product_attention)}
    if device_name == "cpu":
        return {**ours, "pytorch": Contender(theirs)}
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash2": SDPBackend.FLASH_ATTENTION}
    return {**ours, **{name: Contender(theirs, functools.partial(sdpa_kernel, x)) for name, x in backends.items()}}


class Comparison:
    """What all measurements share."""

    def __init__(self, torch, device, contenders, report, deadline, dtype, rounds):
        self.torch, self.device, self.contenders = torch, device, contenders
        self.report, self.deadline, self.dtype = report, deadline, dtype
        types = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
        self.torch_dtype, self.rounds = types[dtype], rounds

    def random(self, *shape):
        return self.torch.randn(*shape, device=self.device.name, dtype=self.torch_dtype)

    @contextlib.contextmanager
    def around(self, name, pass_):
        """What holds while a contender is called: its kernel, and gradients only where they are asked for."""
        with self.contenders[name].context(), self.torch.set_grad_enabled(pass_ != "forward"):
            yield

    def call(self, name, pass_, q, k, v, grad, options):
        """A function without arguments. Its result is a tuple of tensors."""
        function, torch = self.contenders[name].function, self.torch
        if pass_ == "forward":
            return lambda: (function(q, k, v, **options),)
        leaves = tuple(x.detach().requires_grad_() for x in (q, k, v))
        return lambda: torch.autograd.grad(function(*leaves, **options), leaves, grad)

    # --- shapes ---------------------------------------------------------------------------------------------------

    def run_shapes(self, shapes, modes, passes, reserve):
        """`reserve` seconds are left for what comes after."""
        cases = [(shape, pass_) for shape in shapes for pass_ in passes]
        deadline = Deadline(max(0.0, self.deadline.left() - reserve))
        for number, (shape, pass_) in enumerate(cases):
            where = f"{shape.name}, {pass_}"
            if deadline.left() <= 0:
                self.report.failure(where, "not run: no time left")
                continue
            try:
                self.run_shape(shape, pass_, modes, deadline, len(cases) - number)
            except Exception as error:
                self.report.failure(where, error)
            self.device.free()

    def run_shape(self, shape, pass_, modes, deadline, cases_left):
        torch = self.torch
        torch.manual_seed(0)
        q, grad = (self.random(shape.batch, shape.heads, shape.q_len, shape.head_dim) for _ in range(2))
        k, v = (self.random(shape.batch, shape.kv_heads, shape.kv_len, shape.head_dim) for _ in range(2))
        options = {"is_causal": shape.causal, "enable_gqa": shape.heads != shape.kv_heads}
        calls, refused = {}, {}
        for name in self.contenders:
            call = self.call(name, pass_, q, k, v, grad, options)
            self.accept(f"{shape.name}, {pass_}", name, refused, calls, lambda: self.try_call(name, pass_, call))
        more = self.check(shape, pass_, calls)
        for number, mode in enumerate(modes):
            end = deadline.share((cases_left - 1) * len(modes) + len(modes) - number)
            self.run_mode(shape, pass_, mode, calls, dict(refused), functools.partial(deadline.passed, end), more)

    def accept(self, where, name, refused, into, make):
        """into[name] = make(), or the reason why not: a failure where it is ours."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                into[name] = make()
        except Exception as error:
            self.device.free()
            if name == "rootdk":
                self.report.failure(where, error)
            refused[name] = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]

    def try_call(self, name, pass_, call):
        """The call itself, after it has run once."""
        with self.around(name, pass_):
            call()
            self.device.synchronize()
        return call

    def check(self, shape, pass_, calls):
        """Whether results agree, and ours keep their bits from run to run; both become part of the row."""
        others = [name for name in calls if name != "rootdk"]
        if "rootdk" not in calls or not others:
            return {}
        with self.around("rootdk", pass_):
            ours, again = calls["rootdk"](), calls["rootdk"]()
        with self.around(others[-1], pass_):
            theirs = calls[others[-1]]()
        same = all(self.torch.equal(a, b) for a, b in zip(ours, again))
        difference = max(
            ((a.float() - b.float()).norm() / b.float().norm()).item() for a, b in zip(ours, theirs)
        )
        where = f"{shape.name}, {pass_}"
        limit = LIMITS[self.dtype][pass_ != "forward"]
        if not difference <= limit:
            self.report.failure(where, f"rootdk and {others[-1]} differ by {difference:.2e}, more than {limit}")
        if not same:
            self.report.failure(where, "rootdk gives other bits when it runs again")
        return {"difference": difference, "same_bits": same}

    def run_mode(self, shape, pass_, mode, calls, refused, passed, more):
        measures = {}
        for name, call in calls.items():
            make = functools.partial(self.measure, name, pass_, mode, call)
            self.accept(f"{shape.name}, {mode}, {pass_}", name, refused, measures, make)
        times = interleaved(measures, passed, most=self.rounds)
        self.report.shape(shape, mode, pass_, times, refused, **more)

    def measure(self, name, pass_, mode, call):
        """A function that gives the seconds of one call."""
        device, around = self.device, self.around
        with around(name, pass_):
            device.seconds(call, 2)
            count = calls_a_measure(device.seconds(call, 2))
            if mode == "graph":
                replay = device.graph(call, min(count, 20))
                device.seconds(replay, 1)
                return lambda: device.seconds(replay, 1) / min(count, 20)

        def eager():
            with around(name, pass_):
                return device.seconds(call, count)

        return eager

    # --- the host's time of a call --------------------------------------------------------------------------------

    def run_host(self, compiled):
        """Time of the calling thread until a call returns; on a GPU the kernels may still run."""
        kinds = {
            "no_grad": ("forward", None),
            "with grad": ("grad", None),
            "forward + backward": ("both", None),
        }
        if compiled:
            kinds = {
                "compiled, no_grad": ("forward", self.compiled),
                "compiled, forward + backward": ("both", self.compiled),
            }
        for kind, (pass_, change) in kinds.items():
            try:
                self.run_host_kind(kind, pass_, change or (lambda function: function))
            except Exception as error:
                self.report.failure(f"host time, {kind}", error)

    def compiled(self, function):
        """torch.compile of a copy of the code: shared code would be compiled for the first kernel alone."""

        def call(q, k, v):
            return function(q, k, v)

        call.__code__ = call.__code__.replace()
        return self.torch.compile(call)

    def run_host_kind(self, kind, pass_, change):
        q, k, v, grad = (self.random(*HOST_SHAPE) for _ in range(4))
        measures, refused, where = {}, {}, f"host time, {kind}"
        for name, contender in self.contenders.items():
            call = self.host_call(change(contender.function), pass_, q, k, v, grad)
            make = functools.partial(self.host_measure, name, pass_, call)
            self.accept(where, name, refused, measures, make)
        if kind in ("no_grad", "forward + backward"):
            make = lambda: self.host_measure("rootdk", pass_, self.c_call(q, pass_))  # noqa: E731
            self.accept(where, C_FUNCTION, refused, measures, make)
        end = self.deadline.share(10)
        self.report.host(kind, interleaved(measures, lambda: self.deadline.passed(end), most=self.rounds), refused)

    def host_call(self, function, pass_, q, k, v, grad):
        if pass_ == "forward":
            return lambda: function(q, k, v)
        leaves = tuple(x.detach().requires_grad_() for x in (q, k, v))
        if pass_ == "grad":
            return lambda: function(*leaves)
        return lambda: self.torch.autograd.grad(function(*leaves), leaves, grad)

    @staticmethod
    def c_call(q, pass_):
        from python_overhead import c_backward_call, c_call

        forward = c_call(q, causal=False)
        if pass_ == "forward":
            return forward
        backward = c_backward_call(q, causal=False)
        return lambda: (forward(), backward())

    def host_measure(self, name, pass_, call, count=100):
        def measure():
            with self.around(name, pass_):
                begin = time.perf_counter()
                for _ in range(count):
                    call()
                elapsed = time.perf_counter() - begin
                self.device.synchronize()
            return elapsed / count

        with self.around(name, pass_):
            for _ in range(20):
                call()
            self.device.synchronize()
        return measure


def end_in_time(report, seconds):
    """A call that never returns must not take the results with it."""

    def end():
        report.failure("the comparison", f"did not end in {seconds:.0f} seconds")
        report.means()
        sys.stdout.flush()
        os._exit(3)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--library", help="librootdk.so (else ROOTDK_LIBRARY, or that of the build folder)")
    parser.add_argument("--seconds", type=float, default=480.0, help="the comparison ends after so many, at most 20 later")
    parser.add_argument("--rounds", type=int, default=25, help="at most so many for each shape, pass and mode")
    parser.add_argument("--json", help="write everything to this file")
    parser.add_argument("--only", help="names of shapes, with commas")
    parser.add_argument("--shapes", help="a JSON file with other shapes: objects with name, batch, heads, ...")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--passes", default=",".join(PASSES))
    parser.add_argument("--dtype", choices=sorted(LIMITS), help="bf16 on cuda, f32 on the CPU unless given")
    parser.add_argument("--host-only", action="store_true", help="the host's time of a call alone, without shapes")
    parser.add_argument("--no-host", action="store_true", help="without the host's time of a call")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    options = parser.parse_args(arguments)
    for name, known in (("modes", MODES), ("passes", PASSES)):
        chosen = getattr(options, name).split(",")
        if not set(chosen) <= set(known):
            parser.error(f"--{name} is {getattr(options, name)}, expected some of {','.join(known)}")
        setattr(options, name, chosen)
    return options


def chosen_shapes(options):
    shapes = model_shapes.read_shapes(options.shapes) if options.shapes else model_shapes.SHAPES
    if options.only:
        # A name may have a comma in it.
        shapes = [shape for shape in shapes if shape.name.split(",")[0] in options.only.split(",")]
        unknown = sorted(set(options.only.split(",")) - {shape.name.split(",")[0] for shape in shapes})
        if unknown:
            sys.exit(f"no shape is named {', '.join(unknown)}")
    return [model_shapes.small(shape) for shape in shapes] if options.device == "cpu" else shapes


def compare(options, torch, device, contenders, facts):
    """The whole comparison; gives its Report."""
    report = Report(options.json, functools.partial(print, flush=True))
    timer = end_in_time(report, options.seconds + 20.0)
    deadline = Deadline(options.seconds)
    dtype = options.dtype or ("f32" if device.name == "cpu" else "bf16")
    report.header(**facts, torch=torch.__version__, dtype=dtype, **device.facts())
    comparison = Comparison(torch, device, contenders, report, deadline, dtype, options.rounds)
    compiles = not (options.no_host or options.no_compile) and hasattr(torch, "compile")
    if not options.no_host:
        comparison.run_host(compiled=False)
    modes = [mode for mode in options.modes if mode in device.modes]
    reserve = min(COMPILE_SECONDS, 0.25 * options.seconds) if compiles else 0.0
    if not options.host_only:
        comparison.run_shapes(chosen_shapes(options), modes, options.passes, reserve)
    if compiles:
        comparison.run_host(compiled=True)
    report.means()
    timer.cancel()
    return report


def main(arguments=None):
    options = parse(arguments)
    shapes = chosen_shapes(options)
    try:
        import torch
    except ImportError:
        sys.exit("compare_torch: PyTorch is not importable here")
    if not hasattr(torch.nn.functional, "scaled_dot_product_attention"):
        sys.exit(f"compare_torch: PyTorch {torch.__version__} has no scaled_dot_product_attention to compare with")
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("no CUDA device: nothing to compare")
    if options.device == "cpu":
        os.environ.setdefault("ROOTDK_THREADS", "1")
    if options.library:
        os.environ["ROOTDK_LIBRARY"] = os.path.abspath(options.library)
    import rootdk

    device = (Cuda if options.device == "cuda" else Cpu)(torch)
    facts = {"rootdk": rootdk.__version__, "library": rootdk._abi.path, "shapes_asked_for": len(shapes)}
    report = compare(options, torch, device, contenders_on(device.name), facts)
    return int(bool(report.content["failures"]))


if __name__ == "__main__":
    sys.exit(main())
