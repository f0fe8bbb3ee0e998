"""The way from PyTorch to the CUDA kernels, on a GPU: the compiled binding and ctypes give the same bits, on any stream, in a
captured graph and with gradients. Without pytest: python3 tests/python/cuda_device_test.py."""

import contextlib
import os
import sys
import traceback

try:
    import pytest

    torch = pytest.importorskip("torch")
    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
except ImportError:
    import torch

import rootdk
import rootdk.torch as operators
from rootdk import _fast

SHAPE = (2, 8, 300, 64)


def tensors(shape=SHAPE, kv_heads=None, count=3, dtype=torch.bfloat16, device="cuda"):
    torch.manual_seed(1)
    kv_shape = (shape[0], kv_heads or shape[1], *shape[2:])
    return [torch.randn(shape if i == 0 else kv_shape, dtype=dtype, device=device) for i in range(count)]


def theirs(*arguments, **options):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(*arguments, **options)


@contextlib.contextmanager
def without_binding():
    """The general way, over ctypes."""
    from rootdk.torch import _operator, _sdpa

    kept = _operator._fast_attention, _sdpa._fast_attention
    _operator._fast_attention = _sdpa._fast_attention = None
    try:
        yield
    finally:
        _operator._fast_attention, _sdpa._fast_attention = kept


def close(a, b, limit=2e-2):
    difference = ((a.float() - b.float()).norm() / b.float().norm().clamp_min(1e-30)).item()
    assert difference < limit, difference


def gradients(function, inputs, grad, **options):
    leaves = [x.detach().requires_grad_() for x in inputs]
    out = function(*leaves, **options)
    return (out.detach(), *torch.autograd.grad(out, leaves, grad))


CASES = [
    {},
    {"is_causal": True},
    {"scale": 0.3},
    {"attn_mask": "bool"},
    {"attn_mask": "float"},
]


def with_mask(options, q, k):
    options = dict(options)
    shape = (q.shape[0], 1, q.shape[2], k.shape[2])
    if options.get("attn_mask") == "bool":
        options["attn_mask"] = torch.rand(shape, device=q.device) < 0.8
    elif options.get("attn_mask") == "float":
        options["attn_mask"] = torch.randn(shape, dtype=q.dtype, device=q.device)
    return options


def test_the_binding_serves_cuda_tensors():
    q, k, v = tensors()
    assert _fast.binding is not None
    assert _fast.binding.attention((q, k, v), {"causal": True}) is not NotImplemented
    leaf = q.clone().requires_grad_()
    out = operators.scaled_dot_product_attention(leaf, k, v)
    assert "CompiledAttention" in type(out.grad_fn).__name__


def test_results_are_those_of_pytorch_and_of_ctypes():
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for kv_heads in (8, 2):
            q, k, v = tensors(kv_heads=kv_heads, dtype=dtype)
            for case in CASES:
                options = {**with_mask(case, q, k), "enable_gqa": kv_heads != 8}
                out = operators.scaled_dot_product_attention(q, k, v, **options)
                with without_binding():
                    assert torch.equal(out, operators.scaled_dot_product_attention(q, k, v, **options)), options
                close(out, theirs(q, k, v, **options))


def test_gradients_are_those_of_pytorch_and_of_ctypes():
    for dtype in (torch.bfloat16, torch.float32):
        for kv_heads in (8, 2):
            q, k, v = tensors(kv_heads=kv_heads, dtype=dtype)
            grad = torch.randn_like(q)
            for case in CASES:
                options = {**with_mask(case, q, k), "enable_gqa": kv_heads != 8}
                ours = gradients(operators.scaled_dot_product_attention, (q, k, v), grad, **options)
                with without_binding():
                    general = gradients(operators.scaled_dot_product_attention, (q, k, v), grad, **options)
                expected = gradients(theirs, (q, k, v), grad, **options)
                for a, b, c in zip(ours, general, expected):
                    assert torch.equal(a, b), options
                    close(a, c, 5e-2)


def test_the_gradient_of_a_bias_and_of_a_sum():
    q, k, v = tensors()
    bias = torch.randn(1, 8, 300, 300, dtype=q.dtype, device="cuda", requires_grad=True)
    (ours,) = torch.autograd.grad(operators.scaled_dot_product_attention(q, k, v, attn_mask=bias).sum(), bias)
    (expected,) = torch.autograd.grad(theirs(q, k, v, attn_mask=bias).sum(), bias)
    assert ours.shape == bias.shape
    close(ours, expected, 1e-1)


def test_another_stream():
    q, k, v = tensors((2, 16, 2048, 64))
    expected = operators.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.cuda.synchronize()
    for binding in (True, False):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), contextlib.nullcontext() if binding else without_binding():
            torch.cuda._sleep(50_000_000)  # what comes before on this stream must be waited for, and on no other
            late = q * 1
            out = operators.scaled_dot_product_attention(late, k, v, is_causal=True)
            assert not stream.query()
        stream.synchronize()
        assert torch.equal(out, expected)


def test_a_thread_that_is_new_to_the_device():
    import threading

    q, k, v = tensors()
    out, expected = torch.empty_like(q), rootdk.attention(q, k, v)
    torch.cuda.synchronize()
    failures = []

    def work():  # no memory of PyTorch's, which would make the device current
        try:
            rootdk.attention(q, k, v, out=out)
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert not failures and torch.equal(out, expected), failures


def test_calls_from_threads_on_streams():
    import threading

    q, k, v = tensors((1, 8, 1024, 64))
    grad = torch.randn_like(q)
    expected = gradients(operators.scaled_dot_product_attention, (q, k, v), grad, is_causal=True)
    torch.cuda.synchronize()
    failures = []

    def work():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(20):
                got = gradients(operators.scaled_dot_product_attention, (q, k, v), grad, is_causal=True)
                if not all(torch.equal(a, b) for a, b in zip(got, expected)):
                    failures.append("bits differ")
        stream.synchronize()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_a_captured_graph():
    q, k, v = tensors((2, 8, 1024, 64))
    grad = torch.randn_like(q)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]

    def step():
        out = operators.scaled_dot_product_attention(*leaves, is_causal=True)
        return (out.detach(), *torch.autograd.grad(out, leaves, grad))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    for seed in (2, 3):
        torch.manual_seed(seed)
        with torch.no_grad():
            for x in leaves:
                x.copy_(torch.randn_like(x))
        expected = [x.clone() for x in step()]
        for x in results:
            x.zero_()
        other = [torch.randn(1 << 20, device="cuda") for _ in range(8)]  # what a scratch that was not kept would hold
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(results, expected))
        del other


def test_compiled_functions():
    q, k, v = tensors()
    grad = torch.randn_like(q)

    def doubled(q, k, v):
        return operators.scaled_dot_product_attention(q, k, v, is_causal=True) * 2

    expected = gradients(doubled, (q, k, v), grad)
    for mode in ("default", "reduce-overhead"):  # the second captures CUDA graphs after the first calls
        torch._dynamo.reset()
        function = torch.compile(doubled, fullgraph=True, mode=mode)
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            for a, b in zip(gradients(function, (q, k, v), grad), expected):
                close(a, b, 1e-2)


def test_dropout_draws_what_ctypes_draws():
    q, k, v = tensors()
    outs = []
    for context in (contextlib.nullcontext(), without_binding()):
        with context:
            torch.manual_seed(4)
            outs.append(operators.scaled_dot_product_attention(q, k, v, dropout_p=0.2))
    assert torch.equal(*outs) and not torch.equal(outs[0], operators.scaled_dot_product_attention(q, k, v))


def test_errors_are_those_of_the_general_way():
    q, k, v = tensors()
    for bad in ((q, k[:, :3], v), (q, k.cpu(), v), (q, k.float(), v), (q, k[..., :32], v)):
        messages = []
        for context in (contextlib.nullcontext(), without_binding()):
            with context:
                try:
                    operators.scaled_dot_product_attention(*bad)
                    messages.append("none")
                except Exception as error:
                    messages.append(f"{type(error).__name__}: {error}")
        assert messages[0] == messages[1] != "none", messages


def test_autocast():
    q, k, v = tensors(dtype=torch.float32)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert operators.scaled_dot_product_attention(q, k, v).dtype == torch.bfloat16
        low = [x.bfloat16() for x in (q, k, v)]
        out = operators.scaled_dot_product_attention(*low)
    assert torch.equal(out, operators.scaled_dot_product_attention(*low))


def test_memory_is_given_back():
    q, k, v = tensors((2, 8, 1024, 64))
    grad = torch.randn_like(q)
    for _ in range(3):
        gradients(operators.scaled_dot_product_attention, (q, k, v), grad)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(50):
        gradients(operators.scaled_dot_product_attention, (q, k, v), grad)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_calls_that_come_again_in_any_order():
    """The library finds them by their shapes: results have the bits of a call that names its target, which it never keeps."""
    import random

    choose = random.Random(5)
    shapes = [(2, 8, 300, 64), (1, 4, 64, 128), (3, 2, 17, 64), (1, 16, 1, 64)]
    options = [{}, {"causal": True}, {"scale": 0.3}, {"window": (16, None)}, {"softcap": 20.0}, {"sinks": None}, {"mask": None}]
    kept = []
    for _ in range(300):
        shape, option = choose.choice(shapes), dict(choose.choice(options))
        dtype = choose.choice([torch.bfloat16, torch.float16])
        q, k, v = (torch.randn(shape, dtype=dtype, device="cuda") for _ in range(3))
        if "sinks" in option:
            option["sinks"] = torch.randn(shape[1], device="cuda")
        if "mask" in option:
            option["mask"] = torch.rand(shape[2], shape[2], device="cuda") < 0.8
        kept = [*kept[-4:], q]  # so that addresses change
        grad = torch.randn_like(q)
        assert torch.equal(rootdk.attention(q, k, v, **option), rootdk.attention(q, k, v, target="sm90", **option)), option
        ours = gradients(rootdk.attention, (q, k, v), grad, **option)
        named = gradients(rootdk.attention, (q, k, v), grad, target="sm90", **option)
        assert all(torch.equal(a, b) for a, b in zip(ours, named)), (shape, option)


def test_out_is_counted_and_leaves_are_refused():
    q, k, v = tensors()
    out = torch.empty_like(q)
    before = out._version
    rootdk.attention(q, k, v, out=out)
    assert out._version > before
    try:
        rootdk.attention(q, k, v, out=out.requires_grad_())
        raise AssertionError("a leaf that requires a gradient was written to")
    except ValueError as error:
        assert "requires a gradient" in str(error)


def test_gradients_of_several_outputs_at_once():
    inputs = [x.requires_grad_() for x in tensors((2, 4, 100, 64))]
    out = rootdk.attention(*inputs, causal=True)
    grads = torch.randn(3, *out.shape, dtype=out.dtype, device="cuda")
    together = torch.autograd.grad(out, inputs, grads, is_grads_batched=True, retain_graph=True)
    each = torch.vmap(lambda grad: torch.autograd.grad(out, inputs, grad, retain_graph=True))(grads)
    assert all(torch.equal(a, b) for a, b in zip(each, together))
    for i, grad in enumerate(grads):
        for a, b in zip(together, torch.autograd.grad(out, inputs, grad, retain_graph=True)):
            close(a[i], b, 1e-2)


def layer_over_ranks(group, q, k, v):
    """What huggingface.use(model, group=group) makes of a layer on a GPU, and of the rows that a rank gets."""
    import types

    from rootdk import _hf_ranks

    ranks = _hf_ranks.Ranks(group, "zigzag", q.device)
    ranks.shares = ranks.cut(q.shape[2])
    layer = types.SimpleNamespace(_rootdk_ranks=ranks, is_causal=True, config=None)
    out, _ = _hf_ranks.attention_forward(layer, q, k, v, None)
    assert torch.equal(out.transpose(1, 2), rootdk.attention(q, k, v, causal=True))
    assert torch.equal(_hf_ranks.gathered(ranks, out, 1), out)
    ranks.padding = {"kv_lengths": torch.tensor([200], dtype=torch.int32, device="cuda")}
    try:
        _hf_ranks.attention_forward(layer, q, k, v, None)
        raise AssertionError("padding went unnoticed")
    except NotImplementedError as error:
        assert "kv_lengths is not served across ranks on a GPU" in str(error)


def test_groups_say_what_they_do_not_send():
    import tempfile

    import torch.distributed as dist

    if not dist.is_nccl_available():
        return
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            q, k, v = tensors((1, 4, 256, 64))
            assert torch.equal(rootdk.distributed.attention(q, k, v, causal=True), rootdk.attention(q, k, v, causal=True))
            try:
                rootdk.distributed.attention(q.cpu(), k.cpu(), v.cpu())
                raise AssertionError("a group on nccl took tensors of the CPU")
            except ValueError as error:
                assert "on the CPU, which a group on nccl does not send" in str(error)
            layer_over_ranks(dist.group.WORLD, q, k, v)
        finally:
            dist.destroy_process_group()


def main():
    print(f"rootdk {rootdk.__version__}, PyTorch {torch.__version__}, binding {_fast.binding}, {os.environ.get('ROOTDK_LIBRARY')}")
    failed = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_"):
            continue
        try:
            test()
            print("ok    ", name)
        except Exception:
            failed += 1
            print("FAILED", name)
            traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
