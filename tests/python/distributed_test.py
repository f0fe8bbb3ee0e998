"""Attention over the ranks of a torch.distributed group: gloo, with processes of this machine."""

import os
import tempfile
import time

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this PyTorch has no torch.distributed with gloo", allow_module_level=True)

import torch.multiprocessing as processes  # noqa: E402

import rootdk  # noqa: E402
from rootdk import _device_calls, _device_exchange, _device_ranks, distributed  # noqa: E402

LENGTH = 333
CUTS = dict(key_chunk=64, query_block=48, timeout=120.0)


def whole():
    torch.manual_seed(0)
    q = torch.randn(1, 4, LENGTH, 32)
    k, v = (torch.randn(1, 2, LENGTH, 32) for _ in range(2))
    return q, k, v, torch.randn_like(q), torch.randn(4)


def call(rows, options, **more):
    """out, lse and the gradients of one rank."""
    q, k, v, grad_out, sinks = whole()
    q, k, v, grad_out = (rootdk.distributed.take(x, rows) for x in (q, k, v, grad_out))
    q, k, v, sinks = (x.clone().requires_grad_() for x in (q, k, v, sinks))
    result = rootdk.distributed.attention(q, k, v, stats=("lse", "max_logit"), sinks=sinks, **options, **CUTS, **more)
    loss = (result.out * grad_out).sum() + result.lse.sum()
    loss.backward()
    return [x.detach() for x in (result.out, q.grad, k.grad, v.grad, result.lse, result.max_logit, sinks.grad)]


def learned(rows, **more):
    """What a call with a bias, a table and maps gives: first what has rows, then what is of the whole."""
    torch.manual_seed(1)
    q, k, v, grad_out, _ = whole()
    bias = rootdk.distributed.take(torch.randn(1, 4, LENGTH, LENGTH), rows).requires_grad_()
    table, key_bias = torch.randn(4, 9, requires_grad=True), torch.randn(1, LENGTH)
    blocks = torch.rand(6, 6) < 0.7
    q, k, v, grad_out = (rootdk.distributed.take(x, rows) for x in (q, k, v, grad_out))
    options = dict(relative_table=table, relative_zero=4, block_mask=blocks, block_size=64, **CUTS, **more)
    result = rootdk.distributed.attention(q, k, v, bias=bias, map_size=5, weights=True, stats="column_mass", **options)
    (result.out * grad_out).sum().backward()
    key_bias = key_bias.requires_grad_()
    (rootdk.distributed.attention(q, k, v, bias=key_bias, **CUTS, **more) * grad_out).sum().backward()
    with_rows = [result.out, result.weights, result.column_mass[..., None], bias.grad]
    return [x.detach() for x in with_rows], [result.pooled_map, table.grad, key_bias.grad]


CASES = [
    dict(causal=True),
    dict(causal=True, window=(60, 0), dropout=0.1, seed=3, softcap=9.0),
    dict(causal=True, q_starts=[0, 5, 130, 131, LENGTH], kv_starts=[0, 5, 130, 131, LENGTH]),
]


def layout_of(options):
    return "documents" if "q_starts" in options else "zigzag"


def cut(options, ranks):
    starts = options.get("q_starts")
    return rootdk.distributed.shares(layout_of(options), LENGTH, ranks, starts=starts, causal=True)


def compare(rank, ranks, folder):
    for number, options in enumerate(CASES):
        expected = torch.load(os.path.join(folder, f"one{number}.pt"))
        rows = cut(options, ranks)[rank]
        for scheme in ("ring", "heads", "automatic"):
            actual = call(rows, options, shares=layout_of(options), scheme=scheme)
            for i, (a, b) in enumerate(zip(expected, actual)):
                a = a if i == 6 else rootdk.distributed.take(a, rows)
                assert torch.equal(a, b), f"rank {rank} of {ranks}, case {number}, {scheme}, result {i}"


    rows = cut(CASES[0], ranks)[rank]
    expected, actual = torch.load(os.path.join(folder, "learned.pt")), learned(rows, shares="zigzag")
    for i, (a, b) in enumerate(zip(expected[0], actual[0])):
        assert torch.equal(rootdk.distributed.take(a, rows), b), f"rank {rank} of {ranks}, result {i} with rows"
    for i, (a, b) in enumerate(zip(expected[1], actual[1])):
        assert torch.equal(a, b), f"rank {rank} of {ranks}, result {i} of the whole"


def decode(rank, ranks, folder):
    q, k, v, *_ = whole()
    begin, end = rank * LENGTH // ranks, (rank + 1) * LENGTH // ranks
    part = rootdk.attention(q[:, :, :1], k[:, :, begin:end], v[:, :, begin:end], stats="lse")
    rootdk.distributed.merge_over_ranks(part.out, part.lse)
    assert torch.allclose(part.out, rootdk.attention(q[:, :, :1], k, v), atol=1e-6)


def disagree(rank, ranks, folder):
    q = torch.zeros(1, 1, 10, 16 if rank else 8)
    with pytest.raises(ValueError, match="head_dim is 8 on rank 0 but 16 on rank 1"):
        rootdk.distributed.attention(q, q, q)


def fail_alone(rank, ranks, folder):
    """What rank 1 gets wrong, the others are told; the group goes on."""
    q = torch.zeros(1, 1, 10, 8)
    wrong = [dict(nonsense=1), dict(scheme="rings"), dict(stats="width"), dict(shares="documents"), dict(key_chunk="x")]
    for options in wrong:
        with pytest.raises((TypeError, ValueError), match=".*" if rank == 1 else "rank 1: .*(Type|Value)Error"):
            rootdk.distributed.attention(q, q, q, timeout=20.0, **(options if rank == 1 else {}))
    with pytest.raises((TypeError, ValueError), match="expected a PyTorch tensor"):
        rootdk.distributed.attention(None if rank == 1 else q, q, q, timeout=20.0)
    assert rootdk.distributed.attention(q, q, q, timeout=20.0).shape == q.shape


def stay_away(rank, ranks, folder):
    """A rank that never makes the call: the others wait as long as they were told, not as long as the group does."""
    done = os.path.join(folder, "done")
    if rank == 1:
        while not all(os.path.exists(done + str(r)) for r in range(ranks) if r != 1):
            time.sleep(0.05)
        return
    q, start = torch.zeros(1, 1, 10, 8), time.monotonic()
    with pytest.raises(rootdk.DeviceError, match="did not begin the call within 1.5 seconds"):
        rootdk.distributed.attention(q, q, q, timeout=1.5)
    assert time.monotonic() - start < 60
    open(done + str(rank), "w").close()


def go_another_way(rank, ranks, folder):
    """Rank 1 goes back while the others make another call."""
    q = torch.zeros(1, 1, 10, 8, requires_grad=True)
    out = rootdk.distributed.attention(q, q, q, timeout=2.0)
    with pytest.raises(rootdk.DeviceError):
        out.sum().backward() if rank == 1 else rootdk.distributed.attention(q, q, q, timeout=2.0)


def die(rank, ranks, folder):
    if rank == 1:
        os._exit(0)
    q = torch.zeros(1, 1, 10, 8)
    with pytest.raises((rootdk.DeviceError, RuntimeError)):
        rows = rootdk.distributed.shares("contiguous", 10 * ranks, ranks)
        rootdk.distributed.attention(q, q, q, shares=rows, timeout=20.0)


STARTS = [0, 700, 701, 1500, 2000]
GATHERED = [
    ({}, "contiguous"),
    (dict(causal=True, softcap=5.0), "zigzag"),
    (dict(causal=True, window=(500, None)), "striped"),
    (dict(window=(300, 200)), "contiguous"),
    (dict(causal=True, q_starts=STARTS, kv_starts=STARTS), "documents"),
    (dict(causal=True, sinks=torch.tensor([0.5, -1.0, 2.0, 0.0])), "zigzag"),
]


def on_device(q, k, v, shares, stats=False, **options):
    """rootdk.distributed.attention as it is for tensors on a GPU."""
    ranks = distributed._Ranks.of(None, q)
    return distributed._on_device(ranks, shares, None, stats, False, q, k, v, options)


def gathered(rank, ranks, folder):
    """The way of tensors on a GPU, which is made of ordinary calls, with those of the CPU."""
    for options, layout in GATHERED:
        torch.manual_seed(0)
        q, k, v, grad_out = torch.randn(1, 4, 2000, 32), *(torch.randn(1, 2, 2000, 32) for _ in range(2)), torch.randn(1, 4, 2000, 32)
        held = rootdk.distributed.shares(layout, 2000, ranks, starts=options.get("q_starts"), causal=True)
        own = [rootdk.distributed.take(x, held[rank]).requires_grad_() for x in (q, k, v)]
        learned = [options["sinks"].clone().requires_grad_() if "sinks" in options else None for _ in range(2)]
        result = on_device(*own, held, "lse", **{**options, "sinks": learned[0]})
        (result.out * rootdk.distributed.take(grad_out, held[rank])).sum().backward()
        one = [x.requires_grad_() for x in (q, k, v)]
        expected = rootdk.attention(*one, stats="lse", **{**options, "sinks": learned[1]})
        (expected.out * grad_out).sum().backward()
        assert torch.equal(rootdk.distributed.take(expected.out, held[rank]), result.out), (layout, options)
        assert torch.equal(rootdk.distributed.take(expected.lse, held[rank]), result.lse), (layout, options)
        for a, b in zip(one, own):
            assert torch.allclose(rootdk.distributed.take(a.grad, held[rank]), b.grad, atol=2e-5), (layout, options)
        if "sinks" in options:
            assert torch.allclose(learned[1].grad, learned[0].grad, atol=1e-4), (learned[1].grad, learned[0].grad)


def disagree_on_devices(rank, ranks, folder):
    last = rank == ranks - 1
    held = rootdk.distributed.shares("contiguous", 20, ranks)
    other = [[(0, 8)], [(8, 20)]]
    zeros = torch.zeros
    for message, width, rows, options in (
        ("head_dim is 8 on rank 0 but 16 on rank 1", 16 if last else 8, held, {}),
        ("scale is 0.25 on rank 0 but 0.5 on rank 1", 8, held, dict(scale=0.5 if last else 0.25)),
        ("softcap is not given on rank 0 but is 3.0 on rank 1", 8, held, dict(softcap=3.0) if last else {}),
        ("stats is \\(\\) on rank 0 but \\('lse',\\) on rank 1", 8, held, dict(stats="lse") if last else {}),
        ("shares of the queries is .* on rank 0 but .*8.* on rank 1", 8, other if last else held, {}),
        ("a gradient of sinks is needed is False on rank 0 but True on rank 1", 8, held, dict(sinks=zeros(1, requires_grad=last))),
        ("dropout is not served across ranks on a GPU", 8, held, dict(dropout=0.5) if last else {}),
    ):
        q = zeros(1, 1, sum(end - begin for begin, end in rows[rank]), width)
        with pytest.raises((ValueError, NotImplementedError), match=message):
            on_device(q, q, q, rows, **options)
    q = zeros(1, 1, 7 if last else 10, 8)
    with pytest.raises(ValueError, match="q has 7 rows on rank 1, whose share has 10"):
        on_device(q, q, q, held)
    q = zeros(1, 1, 10, 8)
    assert on_device(q, q, q, held).shape == q.shape  # the group serves on


def work(rank, ranks, body, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + os.path.join(folder, "meet"), rank=rank, world_size=ranks)
    body(rank, ranks, folder)
    os._exit(0)  # no goodbye: other ranks may have ended


def run(ranks, body, prepare=lambda folder: None):
    with tempfile.TemporaryDirectory() as folder:
        prepare(folder)
        processes.spawn(work, (ranks, body, folder), nprocs=ranks)


def one_rank(rank, ranks, folder):
    for number, options in enumerate(CASES):
        torch.save(call([(0, LENGTH)], options, shares="contiguous"), os.path.join(folder, f"one{number}.pt"))
    torch.save(learned([(0, LENGTH)]), os.path.join(folder, "learned.pt"))


def alone(folder):
    processes.spawn(work, (1, one_rank, folder), nprocs=1)
    os.path.exists(os.path.join(folder, "meet")) and os.remove(os.path.join(folder, "meet"))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_same_bits_as_on_one_rank(ranks):
    run(ranks, compare, alone)


def test_values_are_those_of_attention():
    with tempfile.TemporaryDirectory() as folder:
        alone(folder)
        out = torch.load(os.path.join(folder, "one0.pt"))[0]
    q, k, v, _, sinks = whole()
    assert torch.allclose(out, rootdk.attention(q, k, v, causal=True, sinks=sinks), atol=1e-5)


def test_maps_and_learned_biases_are_those_of_attention():
    with tempfile.TemporaryDirectory() as folder:
        alone(folder)
        (out, weights, mass, grad_bias), (pooled, grad_table, grad_key_bias) = torch.load(os.path.join(folder, "learned.pt"))
    torch.manual_seed(1)
    q, k, v, grad_out, _ = whole()
    bias = torch.randn(1, 4, LENGTH, LENGTH, requires_grad=True)
    table, key_bias = torch.randn(4, 9, requires_grad=True), torch.randn(1, LENGTH).requires_grad_()
    options = dict(relative_table=table, relative_zero=4, block_mask=torch.rand(6, 6) < 0.7, block_size=64)
    result = rootdk.attention(q, k, v, bias=bias, map_size=5, weights=True, stats="column_mass", **options)
    (result.out * grad_out).sum().backward()
    (rootdk.attention(q, k, v, bias=key_bias) * grad_out).sum().backward()
    expected = [result.out, result.weights, result.column_mass[..., None], bias.grad, result.pooled_map, table.grad, key_bias.grad]
    for i, (a, b) in enumerate(zip(expected, [out, weights, mass, grad_bias, pooled, grad_table, grad_key_bias])):
        assert torch.allclose(a, b, atol=1e-5 * float(a.abs().max())), i


def test_decoding_over_a_cache_that_is_cut():
    run(3, decode)


def test_the_way_of_a_gpu():
    run(3, gathered)
    with pytest.raises(NotImplementedError, match="dropout is not served across ranks on a GPU"):
        _device_ranks.make_cut(None, 0, [[(0, 8)]], None, dict(causal=True, dropout=0.5))


def test_calls_of_a_rank_on_a_gpu():
    part, window = _device_calls.Part, _device_calls.Window(None, 0)
    long, short = part(4096, 8192, 0, 8192, window), part(0, 100, 0, 100, window)
    calls = _device_calls.calls_of([short, part(100, 110, 100, 110, window), part(3000, 3100, 200, 3100, window), long], 1)
    assert [(call.rows, call.keys) for call in calls] == [
        (slice(210, 4306), [(0, 8192)]),  # the most keys first
        (slice(110, 210), [(200, 3100)]),
        (slice(0, 110), [(0, 110)]),  # short ones side by side are packed, and keys that touch are not copied
    ]
    packed = calls[2].options(torch.device("cpu"))
    assert packed["q_starts"].tolist() == packed["kv_starts"].tolist() == [0, 100, 110]
    assert calls[0].options(torch.device("cpu")) == dict(causal=True)
    assert len(_device_calls.calls_of([short, short], 2)) == 2  # packed sequences have no batch
    few = _device_calls.calls_of([part(8000, 8010, 0, 8010, window)], 1)[0]
    assert few.options(torch.device("cpu"))["kv_starts"].tolist() == [0, 8010]


def test_gradients_of_keys_come_back_to_their_ranks():
    shares = (((0, 3), (8, 10)), ((3, 8),), ())
    calls = ((((2, 9),), ((0, 4), (9, 10))), (((0, 10),),), ())  # of each rank, the keys
    x = torch.arange(1.0, 11).reshape(1, 1, 10, 1)
    plans = [_device_exchange.sum_plan(calls, shares, rank, x.device) for rank in range(3)]
    sent = []
    for rank, plan in enumerate(plans):
        parts = [10.0**rank * distributed.take(x, keys) for keys in calls[rank]]
        sent.append(_device_exchange.pack(parts, plan, x).split(plan.send_counts))
    times = torch.tensor([11.0, 11, 12, 12, 11, 11, 11, 11, 11, 11]).reshape(1, 1, 10, 1)  # each part by its rank
    for rank, plan in enumerate(plans):
        came = [parts[rank] for parts in sent]
        assert [len(part) for part in came] == plan.receive_counts
        total = _device_exchange.add_rows(torch.cat(came), plan, distributed.take(x, shares[rank]))
        assert torch.equal(total, distributed.take(times * x, shares[rank]))


def test_ranks_on_gpus_that_disagree_get_the_values():
    run(2, disagree_on_devices)


def test_ranks_that_disagree_get_the_values():
    run(2, disagree)


def test_what_is_wrong_on_one_rank_is_an_error_on_all():
    run(3, fail_alone)


def test_a_rank_that_does_not_come():
    run(3, stay_away)


def test_a_rank_in_another_call():
    run(3, go_another_way)


def test_a_rank_that_dies():
    run(3, die)


def test_without_a_group():
    q = torch.zeros(1, 1, 10, 8)
    with pytest.raises(RuntimeError, match="no process group"):
        rootdk.distributed.attention(q, q, q)


def test_a_group_that_does_not_send_what_lies_on_the_cpu(monkeypatch):
    """nccl sends from GPUs alone: said before anything is sent."""
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            monkeypatch.setattr(dist, "get_backend", lambda group=None: "nccl")
            q = torch.zeros(1, 1, 10, 8)
            for call in (
                lambda: rootdk.distributed.attention(q, q, q),
                lambda: rootdk.distributed.merge_over_ranks(q, q[..., 0].contiguous()),
            ):
                with pytest.raises(ValueError, match="on the CPU, which a group on nccl does not send"):
                    call()
        finally:
            monkeypatch.undo()
            dist.destroy_process_group()


def test_shares():
    assert rootdk.distributed.shares("zigzag", 8, 2) == [[(0, 2), (6, 8)], [(2, 4), (4, 6)]]
    with pytest.raises(ValueError, match="layout is 'spiral'"):
        rootdk.distributed.shares("spiral", 8, 2)
    parts = rootdk.distributed.shares("documents", 0, 3, starts=[0, 400, 401, 1000])
    assert sum(end - begin for rows in parts for begin, end in rows) == 1000
    x = torch.arange(1000.0).reshape(1, 1, 1000, 1)
    assert torch.equal(rootdk.distributed.put([rootdk.distributed.take(x, rows) for rows in parts], parts), x)
