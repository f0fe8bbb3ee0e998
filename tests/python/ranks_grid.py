"""Random calls on the ranks of a gloo group: every result has the bits of one rank, and out those of rootdk.attention.

    python tests/python/ranks_grid.py --ranks 2 3 4 8 --cases 40"""

import argparse
import os
import random
import sys
import tempfile

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as processes
except ImportError:
    print("skipped: PyTorch is not installed")
    sys.exit(77)
if not dist.is_available() or not dist.is_gloo_available():
    print("skipped: this PyTorch has no torch.distributed with gloo")
    sys.exit(77)

import rootdk
from rootdk import distributed

STATS = ("lse", "max_logit", "max_weight", "entropy", "sum_p2", "column_mass")


class Case:
    """One random call: the whole tensors, and the options."""

    def __init__(self, seed):
        self.draw = draw = random.Random(seed)
        torch.manual_seed(seed)
        dtype = draw.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])
        self.kv_heads, group = draw.choice([1, 2]), draw.choice([1, 2, 3])
        heads, dim = self.kv_heads * group, draw.choice([8, 16, 40])
        self.long = draw.random() < 0.25  # chunks that end with tiles of the kernels
        self.q_len = draw.randrange(17, 300)
        self.kv_len = self.q_len if draw.random() < 0.6 else draw.randrange(17, 300)
        if self.long:
            self.kv_len = draw.randrange(1025, 1600)
        self.cuts = dict(key_chunk=1024 if self.long else draw.choice([32, 64, 128]), query_block=draw.choice([16, 48, 100]))
        self.q = torch.randn(1, heads, self.q_len, dim, dtype=dtype)
        self.k, self.v = (torch.randn(1, self.kv_heads, self.kv_len, dim, dtype=dtype) for _ in range(2))
        self.grad_out = torch.randn_like(self.q)
        self.options, self.parameters, self.rows = {}, {}, {}
        self.packed = self.q_len == self.kv_len and draw.random() < 0.3
        self.shape_logits(heads)
        self.scheme = draw.choice(["automatic", "ring", "gather", "heads", "both"])
        if (self.rows or "bias" in self.parameters) and self.scheme in ("heads", "both"):
            self.scheme = "automatic"

    def shape_logits(self, heads):
        draw, options = self.draw, self.options
        options["causal"] = draw.random() < 0.6
        if draw.random() < 0.3:
            options["window"] = (draw.randrange(5, 200), draw.choice([None, 0, 30]))
        if draw.random() < 0.3:
            options.update(dropout=draw.choice([0.1, 0.5]), seed=draw.randrange(1000))
        if draw.random() < 0.2:
            options["softcap"] = 7.0
        if draw.random() < 0.4:
            self.parameters["sinks"] = torch.randn(heads)
        if draw.random() < 0.3:
            self.parameters["alibi_slopes"] = 0.05 * torch.rand(heads)
        if draw.random() < 0.3:
            self.parameters["relative_table"] = torch.randn(draw.choice([1, heads]), 21)
            options["relative_zero"] = 10
        if self.packed:
            cuts = sorted(draw.sample(range(1, self.q_len), 3))
            options["q_starts"] = options["kv_starts"] = [0, *cuts, self.q_len]
            return
        if draw.random() < 0.3:
            self.rows["mask"] = torch.rand(1, draw.choice([1, heads]), self.q_len, self.kv_len) < 0.7
        if draw.random() < 0.3:
            self.rows["bias"] = torch.randn(1, draw.choice([1, heads]), self.q_len, self.kv_len)
        elif draw.random() < 0.2:
            self.parameters["bias"] = torch.randn(1, heads, 1, self.kv_len)
        if draw.random() < 0.2:
            size = draw.choice([16, 50])
            blocks = (-(-self.q_len // size), -(-self.kv_len // size))
            options.update(block_mask=torch.rand(*blocks) < 0.6, block_size=size)

    def shares(self, ranks):
        layout = self.draw.choice(["contiguous", "zigzag", "striped"])
        queries = distributed.shares(layout, self.q_len, ranks)
        keys = queries if self.q_len == self.kv_len else distributed.shares(layout, self.kv_len, ranks)
        if self.packed:
            queries = keys = distributed.shares("documents", 0, ranks, starts=self.options["q_starts"], causal=True)
        return queries, keys

    def run(self, queries, keys, rank, **more):
        """(results with query rows, with key rows, of the whole)"""
        rows, key_rows = queries[rank], keys[rank]
        q, grad_out = (distributed.take(x, rows) for x in (self.q, self.grad_out))
        k, v = (distributed.take(x, key_rows) for x in (self.k, self.v))
        given = {name: distributed.take(x, rows) for name, x in self.rows.items()}
        parameters = {name: x.clone().requires_grad_() for name, x in self.parameters.items()}
        q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
        if "bias" in given:
            given["bias"] = given["bias"].requires_grad_()
        maps = {} if self.packed else dict(map_size=(5, 7))
        result = distributed.attention(
            q, k, v, shares=queries, kv_shares=keys, stats=STATS, timeout=120.0, threads=1,
            **maps, **given, **parameters, **self.options, **self.cuts, **more,
        )  # fmt: skip
        ((result.out * grad_out).sum() + result.lse.clamp(min=-50).sum()).backward()
        with_rows = [result.out, q.grad, *(getattr(result, name)[..., None] for name in STATS[:5])]
        with_rows += [given["bias"].grad] if "bias" in given else []
        of_whole = [x.grad for x in parameters.values()] + ([] if self.packed else [result.pooled_map])
        return with_rows, [k.grad, v.grad, result.column_mass[..., None]], of_whole

    def of_attention(self):
        """out, where the sums of one call are cut as here; else None."""
        few = not self.packed and self.q_len * self.q.shape[1] // self.kv_heads <= 16
        if not self.long or few or "block_mask" in self.options:
            return None
        with torch.no_grad():
            return rootdk.attention(self.q, self.k, self.v, threads=1, **self.rows, **self.parameters, **self.options)


def same(a, b):
    return torch.equal(a.nan_to_num(7.5), b.nan_to_num(7.5))


def compare(case, number, rank, ranks, alone):
    queries, keys = case.shares(ranks)
    whole = ([[(0, case.q_len)]], [[(0, case.kv_len)]])
    expected = case.run(*whole, 0, group=alone)
    actual = case.run(queries, keys, rank, scheme=case.scheme, head_ranks=ranks // (2 - ranks % 2) if case.scheme == "both" else 0)
    for kind, rows in enumerate((queries[rank], keys[rank], None)):
        for i, (a, b) in enumerate(zip(expected[kind], actual[kind])):
            a = a if rows is None else distributed.take(a, rows)
            assert same(a, b), f"case {number}, rank {rank} of {ranks}, {case.scheme}, result {i} of kind {kind}"
    out = case.of_attention()
    assert out is None or same(out, expected[0][0]), f"case {number}: out differs from that of rootdk.attention"
    return out is not None


def work(rank, ranks, first, cases, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + os.path.join(folder, "meet"), rank=rank, world_size=ranks)
    groups = [dist.new_group([r]) for r in range(ranks)]
    equal = sum(compare(Case(first + i), first + i, rank, ranks, groups[rank]) for i in range(cases))
    dist.barrier()
    if rank == 0:
        print(f"{ranks} ranks: {cases} calls with the bits of one rank, {equal} of them compared with rootdk.attention", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4, 8])
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    print("seed", options.seed, flush=True)
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            processes.spawn(work, (ranks, options.seed, options.cases, folder), nprocs=ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
