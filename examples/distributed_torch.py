"""One sequence over the ranks of torch.distributed: torchrun --nproc_per_node 4 distributed_torch.py

Every rank has its rows of q, k and v; out and the gradients are its rows too, with the same bits for any number of ranks."""

import torch
import torch.distributed as dist

import rootdk

TOTAL = 3000

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)  # the same whole on every rank, of which each takes its rows; a real program loads its rows alone
rows = rootdk.distributed.shares("zigzag", TOTAL, ranks)[rank]
q, k, v = (rootdk.distributed.take(torch.randn(1, 4, TOTAL, 32), rows).requires_grad_() for _ in range(3))

result = rootdk.distributed.attention(q, k, v, shares="zigzag", causal=True, stats=("lse", "entropy"))
result.out.square().sum().backward()
print(f"rank {rank} of {ranks}: {q.shape[2]} rows, mean entropy {result.entropy.mean():.4f}, |dk| {k.grad.norm():.4f}")
dist.barrier()
dist.destroy_process_group()
