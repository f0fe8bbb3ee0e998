"""A plain model of a KV cache: every token of every sequence as a row of numbers, and which pages hold them, from
docs/kv_cache.md and the comments of include/rootdk/kv_cache.h."""

import itertools

import numpy as np

from arrays import TYPES, round_to

# --- the model -----------------------------------------------------------------------------------------------------


ROWS = ("keys", "values", "key_slack", "value_slack")


class Sequence:
    def __init__(self, layers):
        self.keys = [[] for _ in range(layers)]  # a row [kv_heads, head_dim] for each token
        self.values = [[] for _ in range(layers)]
        # How far a key or a value may be off, because it lies near a tie of rounding.
        self.key_slack = [[] for _ in range(layers)]
        self.value_slack = [[] for _ in range(layers)]
        self.pages = []  # a page is any object; None: freed
        self.evicted = set()

    def longest(self):
        return max(len(rows) for rows in self.keys)

    def shortest(self):
        return min(len(rows) for rows in self.keys)


class Full(Exception):
    pass


class Model:
    """What the pages say of a cache, in plain Python."""

    def __init__(self, c):
        self.c = c
        self.sequences = []
        self.contiguous = c["layout"] == "contiguous"
        self.page_size = c["page_size"] * 4 if self.contiguous else c["page_size"]
        self.pool = 4 if self.contiguous else c["pages"]
        self.numbers = itertools.count()

    def holders(self):
        """How many sequences hold each page."""
        counts = {}
        for sequence in self.sequences:
            for page in sequence.pages:
                if page is not None:
                    counts[page] = counts.get(page, 0) + 1
        return counts

    def usage(self):
        holders = self.holders()
        return len(self.sequences), self.pool - len(holders), sum(n > 1 for n in holders.values())

    def pages_for(self, length):
        return -(-length // self.page_size)

    def append(self, steps, layer, rows):
        """steps: (sequence, tokens); rows: what to add to each of ROWS. Raises Full, and then has changed nothing."""
        holders = self.holders()
        free = self.pool - len(holders)
        plan = []
        for sequence, tokens in steps:
            length = len(sequence.keys[layer])
            if self.contiguous and length + tokens > self.page_size:
                raise Full
            last = self.pages_for(length + tokens) if tokens else length // self.page_size
            for p in range(length // self.page_size, last):
                if p >= len(sequence.pages):
                    free -= 1
                    plan.append((sequence, p))
                elif holders[sequence.pages[p]] > 1:
                    holders[sequence.pages[p]] -= 1
                    free -= 1
                    plan.append((sequence, p))
        if free < 0:
            raise Full
        for sequence, p in plan:
            sequence.pages[p : p + 1] = [next(self.numbers)]
        row = 0
        for sequence, tokens in steps:
            for i in range(row, row + tokens):
                for name, x in zip(ROWS, rows):
                    getattr(sequence, name)[layer].append(x[:, i])
            row += tokens

    def fork(self, parent, length):
        child = Sequence(self.c["layers"])
        for layer in range(self.c["layers"]):
            for name in ROWS:
                getattr(child, name)[layer] = getattr(parent, name)[layer][:length]
        child.pages = parent.pages[: self.pages_for(length)]
        child.evicted = {i for i in parent.evicted if i < length}
        self.sequences.append(child)

    def trim(self, sequence, length):
        for layer in range(self.c["layers"]):
            for name in ROWS:
                del getattr(sequence, name)[layer][length:]
        del sequence.pages[self.pages_for(length) :]
        sequence.evicted = {i for i in sequence.evicted if i < length}

    def evicts(self, sequence, first, last):
        """The positions that would be evicted then, all in all, or None where they are not one gap."""
        gone = sequence.evicted | set(range(first, sequence.shortest() - min(last, sequence.shortest())))
        whole = not gone or len(gone) == max(gone) - min(gone) + 1
        return gone if whole else None

    def evict(self, sequence, gone):
        sequence.evicted = gone
        for p in range(len(sequence.pages)):
            if all(i in gone for i in range(p * self.page_size, (p + 1) * self.page_size)):
                sequence.pages[p] = None


# --- numbers -------------------------------------------------------------------------------------------------------


def rotated(x, positions, rope):
    """RoPE of x [heads, rows, dim] at its positions."""
    rotary = rope["rotary"]
    pairs = rotary // 2
    angle = np.asarray(positions, np.float64)[:, None] * 10000.0 ** (-2 * np.arange(pairs) / rotary)
    first, second = (
        (np.arange(pairs), np.arange(pairs) + pairs)
        if rope["layout"] == "half_split"
        else (2 * np.arange(pairs), 2 * np.arange(pairs) + 1)
    )
    y = x.copy()
    y[..., first] = x[..., first] * np.cos(angle) - x[..., second] * np.sin(angle)
    y[..., second] = x[..., second] * np.cos(angle) + x[..., first] * np.sin(angle)
    return y


def e4m3(x):
    """The nearest 8-bit number, ties to even, at most 448."""
    magnitude = np.abs(x)
    exponent = np.maximum(np.floor(np.log2(np.where(magnitude == 0, 1, magnitude))), -6)
    step = 2.0 ** (exponent - 3)
    return np.sign(x) * np.minimum(np.round(magnitude / step) * step, 448)


def stored(x, dtype):
    """(what the cache holds of the rows x [heads, rows, dim], the distance of neighbours there)."""
    if dtype in TYPES:
        kept = round_to(x, dtype)
        power = 2.0 ** np.floor(np.log2(np.maximum(np.abs(kept), 1e-30)))
        return kept, 2 * TYPES[dtype][0] * power
    top = np.abs(x).max(-1, keepdims=True)
    largest = 127.0 if dtype == "i8" else 448.0
    scale = np.float32(top / largest).astype(np.float64)
    safe = np.where(scale == 0, 1, scale)
    if dtype == "i8":
        return np.where(scale == 0, 0, np.round(x / safe) * scale), np.broadcast_to(scale, x.shape)
    number = e4m3(x / safe)
    step = 2.0 ** (np.maximum(np.floor(np.log2(np.maximum(np.abs(number), 1e-30))), -6) - 3)
    return np.where(scale == 0, 0, number * scale), step * scale


def near_a_tie(x, kept, step):
    """Where the next neighbour is as near, within the rounding of a scale: either is right."""
    return np.where(np.abs(np.abs(x - kept) - step / 2) <= 1e-5 * step + 4e-7 * np.abs(x), step, 0)


