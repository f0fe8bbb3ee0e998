"""The operation in NumPy float64, with the whole n x n matrix, written from docs/operation.md, docs/statistics.md and
docs/dropout.md. It shares no code with the library and is as plain as those pages.

Beside each result lies a `size`: the sum of the magnitudes of what is added up to get it. tolerance.py makes the error
of rounding out of it."""

import numpy as np

ROW_STATS = ("lse", "max_logit", "max_weight", "entropy", "sum_p2")


# --- dropout -------------------------------------------------------------------------------------------------------


def philox(counter, seed):
    """Four arrays of 32-bit words (as uint64) and a 64-bit seed into four arrays of random words."""
    low_word = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    c0, c1, c2, c3 = (np.asarray(c, np.uint64) for c in counter)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF
    for _ in range(10):
        product0 = np.uint64(0xD2511F53) * c0
        product1 = np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (
            (product1 >> half) ^ c1 ^ np.uint64(k0),
            product1 & low_word,
            (product0 >> half) ^ c3 ^ np.uint64(k1),
            product0 & low_word,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def dropout_factors(probability, seed, batches, heads, q_len, kv_len):
    """[len(batches), heads, q_len, kv_len]: 0 where the weight is dropped, else the inverse of the kept share."""
    threshold = min(int(np.floor(probability * 65536 + 0.5)), 65535)
    keep_scale = float(np.float32(65536 / (65536 - threshold)))
    j = np.arange(kv_len)
    shape = (len(batches), heads, q_len, kv_len)
    counter = (
        np.broadcast_to((j // 8)[None, None, None, :], shape),
        np.broadcast_to(np.arange(q_len)[None, None, :, None], shape),
        np.broadcast_to(np.arange(heads)[None, :, None, None], shape),
        np.broadcast_to(np.asarray(batches)[:, None, None, None], shape),
    )
    words = np.stack(philox(counter, seed))
    word = np.take_along_axis(words, np.broadcast_to((j % 8 // 2)[None, None, None, None, :], (1, *shape)), 0)[0]
    lane = (word >> np.where(j % 2 == 0, 0, 16).astype(np.uint64)) & np.uint64(0xFFFF)
    return np.where(lane < threshold, 0.0, keep_scale)


# --- logits --------------------------------------------------------------------------------------------------------


def kept(o, batch, heads, q_len, kv_len):
    """[batch, heads, q_len, kv_len]: whether every mask that is given keeps the key."""
    distance = np.arange(q_len)[:, None] + (kv_len - q_len) - np.arange(kv_len)[None, :]  # p - j
    keep = np.ones((q_len, kv_len), bool)
    left, right = o.get("window", (None, None))
    if o.get("causal"):
        keep &= distance >= 0
    if left is not None:
        keep &= distance <= left
    if right is not None:
        keep &= distance >= -right
    keep = np.broadcast_to(keep, (batch, heads, q_len, kv_len)).copy()
    if "kv_lengths" in o:
        keep &= np.arange(kv_len) < np.asarray(o["kv_lengths"])[:, None, None, None]
    if "mask" in o:
        keep &= o["mask"]
    if "block_mask" in o:
        block_q, block_kv = o["block_size"]
        rows, columns = np.arange(q_len) // block_q, np.arange(kv_len) // block_kv
        blocks = o["block_mask"]
        rows = rows if blocks.shape[2] > 1 else 0 * rows
        columns = columns if blocks.shape[3] > 1 else 0 * columns
        keep &= blocks[:, :, rows][:, :, :, columns]
    return keep


class Logits:
    """The logits of one rectangle. q [B, H, Q, D], k [B, H, K, D] (heads already repeated), `o` the options by their
    name in rootdk.attention, with arrays in float64."""

    def __init__(self, q, k, o):
        self.q, self.k, self.o = q, k, o
        q_len, kv_len, head_dim = q.shape[2], k.shape[2], q.shape[3]
        scale = o.get("scale")
        named = {None: head_dim**-0.5, "none": 1.0, "inverse_head_dim": 1.0 / head_dim}
        self.factor = (named[scale] if scale is None or isinstance(scale, str) else scale) / o.get("temperature", 1.0)
        self.position = np.arange(q_len)[:, None] + (kv_len - q_len)
        self.distance = self.position - np.arange(kv_len)[None, :]  # p - j
        self.keep = kept(o, q.shape[0], q.shape[1], q_len, kv_len)
        self._score()
        self._add()

    def _score(self):
        q, k, o = self.q, self.k, self.o
        score = o.get("score", "dot")
        if score == "additive":
            a = o["additive_v"][None, :, None, None, :]
            self.inner = np.tanh(q[:, :, :, None, :] + k[:, :, None, :, :])  # [B, H, Q, K, D]
            s, size = (a * self.inner).sum(-1), np.abs(a * self.inner).sum(-1)
            # The argument of tanh is rounded, too.
            near = np.abs(a) * (1 - self.inner**2) * (np.abs(q)[:, :, :, None, :] + np.abs(k)[:, :, None, :, :])
            size = size + near.sum(-1)
        else:
            s, size = q @ k.swapaxes(-1, -2), np.abs(q) @ np.abs(k).swapaxes(-1, -2)
            if score == "cosine":
                self.q_norm = np.sqrt((q * q).sum(-1))[..., :, None]
                self.k_norm = np.sqrt((k * k).sum(-1))[..., None, :]
                norms = self.q_norm * self.k_norm
                safe = np.where(norms == 0, 1, norms)
                s, size = np.where(norms == 0, 0, s / safe), np.where(norms == 0, 0, size / safe)
                self.cosine_size = size  # the magnitudes that a cosine adds up
        self.score, self.size = s, size * abs(self.factor)

    def _add(self):
        o, x = self.o, self.score * self.factor
        softcap = o.get("softcap") or 0.0
        if softcap:
            self.capped = np.tanh(x / softcap)
            x = softcap * self.capped
            self.size = np.minimum(self.size * (1 - self.capped**2), softcap) + 4 * np.abs(x)
        if "bias" in o:
            x = x + o["bias"]
            self.size = self.size + np.abs(np.where(np.isfinite(o["bias"]), o["bias"], 0))
        if "relative_table" in o:
            table = o["relative_table"]
            entry = np.clip(self.distance + o["relative_zero"], 0, table.shape[1] - 1)
            x = x + table[:, entry][None]
            self.size = self.size + np.abs(table[:, entry])[None]
        if "alibi_slopes" in o:
            term = o["alibi_slopes"][None, :, None, None] * np.abs(self.distance)
            x = x - term
            self.size = self.size + np.abs(term)
        self.value = np.where(self.keep, x, -np.inf)
        self.size = np.where(np.isneginf(self.value), 0, self.size)


# --- forward -------------------------------------------------------------------------------------------------------


class Forward:
    """Weights, output and statistics of one rectangle. v is [B, H, K, Dv]; `batches` are the numbers that dropout
    counts."""

    def __init__(self, q, k, v, o, batches):
        self.logits = logits = Logits(q, k, o)
        self.v, self.o = v, o
        value = logits.value
        batch, heads, q_len, kv_len = value.shape
        sinks = o.get("sinks")
        sink = np.full((1, heads, 1, 1), -np.inf) if sinks is None else sinks[None, :, None, None]
        self.max_logit = value.max(-1, keepdims=True, initial=-np.inf)
        top = np.maximum(self.max_logit, sink)
        top = np.where(np.isneginf(top), 0, top)
        power = np.exp(value - top)
        total = power.sum(-1, keepdims=True) + np.exp(sink - top)
        self.lse = np.where(total == 0, -np.inf, top + np.log(np.where(total == 0, 1, total)))
        self.p = power / np.where(total == 0, 1, total)
        self.p_sink = np.exp(sink - top) / np.where(total == 0, 1, total)
        self.m = np.ones_like(self.p)
        if o.get("dropout"):
            self.m = dropout_factors(o["dropout"], o["seed"], batches, heads, q_len, kv_len)
        # A key that takes no part adds nothing, whatever its value is.
        self.taking_part = ~np.isneginf(value)
        self.out = weighted_sum(self.m * self.p, v, self.taking_part)

    def statistics(self):
        p = self.p
        log = np.log(np.where(p > 0, p, 1))
        return {
            "lse": self.lse[..., 0],
            "max_logit": self.max_logit[..., 0],
            "max_weight": p.max(-1, initial=0),
            "entropy": -(p * log).sum(-1),
            "sum_p2": (p * p).sum(-1),
            "column_mass": p.sum(-2),
        }

    def pooled_map(self, rows, columns):
        q_len, kv_len = self.p.shape[2:]
        row_edges = [r * q_len // rows for r in range(rows + 1)]
        column_edges = [c * kv_len // columns for c in range(columns + 1)]
        result = np.zeros((*self.p.shape[:2], rows, columns))
        for r in range(rows):
            first, last = row_edges[r], row_edges[r + 1]
            if first == last:
                continue
            for c in range(columns):
                cell = self.p[:, :, first:last, column_edges[c] : column_edges[c + 1]]
                result[:, :, r, c] = cell.sum((-1, -2)) / (last - first)
        return result


def weighted_sum(weights, v, taking_part):
    """Sum over keys of weights * v, where a value that is not finite counts for the rows that its key takes part in."""
    finite = np.isfinite(v)
    result = weights @ np.where(finite, v, 0)
    if not finite.all():
        touched = taking_part.astype(float) @ (~finite).astype(float) > 0
        result = np.where(touched, np.nan, result)
    return result


# --- backward ------------------------------------------------------------------------------------------------------


def unbroadcast(x, shape):
    axes = tuple(i for i, n in enumerate(shape) if n == 1 and x.shape[i] != 1)
    return x.sum(axes, keepdims=True) if axes else x


class Backward:
    """Gradients of one rectangle, with out, lse and entropy as given: `grad` by name. k and v have the heads of q:
    whoever asks adds up those that share a key head."""

    def __init__(self, forward, out, lse, entropy, g, g_lse, g_entropy):
        logits, o, v = forward.logits, forward.o, forward.v
        self.logits, self.o, self.grad = logits, o, {}
        empty = np.isneginf(lse)[..., None]
        safe_lse = np.where(empty, 0, lse[..., None])
        p = np.where(empty, 0, np.exp(logits.value - safe_lse))
        m = forward.m
        v = np.where(np.isfinite(v), v, 0)  # what is hidden from every row
        dp, dp_size = m * (g @ v.swapaxes(-1, -2)), m * (np.abs(g) @ np.abs(v).swapaxes(-1, -2))
        big_d, d_size = (g * out).sum(-1)[..., None], np.abs(g * out).sum(-1)[..., None]
        ds, size = p * (dp - big_d), dp_size + d_size  # size: without its factor p
        total = p.sum(-1, keepdims=True)
        from_sink = -big_d
        sink_size = d_size
        if g_lse is not None:
            ds, size = ds + g_lse[..., None] * p, size + np.abs(g_lse)[..., None]
            from_sink, sink_size = from_sink + g_lse[..., None], sink_size + np.abs(g_lse)[..., None]
        if g_entropy is not None:
            ge, h = g_entropy[..., None], entropy[..., None]
            value = np.where(np.isneginf(logits.value), 0, logits.value)
            ds = ds - ge * p * (value - safe_lse + h + 1 - total)
            size = size + np.abs(ge) * (np.abs(value) + np.abs(safe_lse) + np.abs(h) + 2)
            from_sink = from_sink + ge * (total - h)
            sink_size = sink_size + np.abs(ge) * (1 + np.abs(h))
        self.p, self.m, self.g, self.ds, self.sink_size = p, m, g, ds, sink_size
        self.per_weight, self.ds_size = size, p * size
        self.grad["v"] = (m * p).swapaxes(-1, -2) @ g
        self.grad["column_mass"] = p.sum(-2)
        if "sinks" in o:
            p_sink = np.exp(np.where(empty, -np.inf, o["sinks"][None, :, None, None] - safe_lse))
            self.grad["sinks"] = (p_sink * from_sink).sum((0, 2, 3))
        self.grad.update(self.spread(ds, signed=True))

    def along_own(self, ds, cosine, size):
        """What the cosine score takes out of a gradient: its part along the vector itself."""
        logits, along = self.logits, ds * cosine
        result = {}
        for name, sums in (("q", along.sum(-1)), ("k", along.sum(-2))):
            x = size(getattr(logits, name))
            square = (x * x).sum(-1, keepdims=True)
            result[name] = sums[..., None] * x / np.where(square == 0, 1, square)
        return result

    def spread(self, ds, signed=False, flat=False):
        """What the gradients of the logits add up to in each tensor, by name. Not `signed`: the sum of the magnitudes,
        for ds that are magnitudes; `flat` leaves out the slope of the softcap."""
        size = (lambda x: x) if signed else np.abs
        logits, o, result = self.logits, self.o, {}
        if "bias" in o:
            result["bias"] = unbroadcast(ds, o["bias"].shape)
        far = np.abs(logits.distance)
        if "alibi_slopes" in o:
            result["alibi_slopes"] = (-1 if signed else 1) * (ds * far).sum((0, 2, 3))
        if "relative_table" in o:
            table = o["relative_table"]
            entry = np.clip(logits.distance + o["relative_zero"], 0, table.shape[1] - 1)
            by_head = ds.sum(0)  # [H, Q, K]
            sums = np.zeros((by_head.shape[0], table.shape[1]))
            for head in range(by_head.shape[0]):
                np.add.at(sums[head], entry, by_head[head])
            result["relative_table"] = unbroadcast(sums, table.shape)
        slope = np.full_like(ds, logits.factor)
        if o.get("softcap") and not flat:
            slope = slope * (1 - logits.capped**2)
        ds = ds * size(slope)
        q, k, score = size(logits.q), size(logits.k), o.get("score", "dot")
        turned = ds.swapaxes(-1, -2)
        if score == "dot":
            result["q"], result["k"] = ds @ k, turned @ q
        elif score == "cosine":
            q_norm, k_norm = logits.q_norm, logits.k_norm.swapaxes(-1, -2)
            safe_q, safe_k = np.where(q_norm == 0, 1, q_norm), np.where(k_norm == 0, 1, k_norm)
            sign = -1 if signed else 1
            ds = np.where((q_norm > 0) & (logits.k_norm > 0), ds, 0)
            turned = ds.swapaxes(-1, -2)
            own = self.along_own(ds, size(logits.score), size)
            result["q"] = ds @ (k / safe_k) / safe_q + sign * own["q"]
            result["k"] = turned @ (q / safe_q) / safe_k + sign * own["k"]
        else:
            a, t = o["additive_v"][None, :, None, None, :], logits.inner
            # The error of tanh does not shrink with 1 - t^2: magnitudes leave that factor out.
            near = ds[..., None] * size(a) * (1 - t * t if signed else 1)
            result["q"], result["k"] = near.sum(3), near.sum(2)
            result["additive_v"] = (ds[..., None] * size(t)).sum((0, 2, 3))
        return result


def add_heads(x, kv_heads):
    """[B, H, ...] into [B, kv_heads, ...]: query heads that share a key head add up."""
    return x.reshape(x.shape[0], kv_heads, -1, *x.shape[2:]).sum(2)


def merged(out, lse):
    """merge_states: out [parts, ..., value_dim], lse [parts, ...]."""
    top = lse.max(0)
    top = np.where(np.isneginf(top), 0, top)
    power = np.exp(lse - top)
    total = power.sum(0)
    whole = np.where(total == 0, -np.inf, top + np.log(np.where(total == 0, 1, total)))
    share = power / np.where(total == 0, 1, total)
    return (share[..., None] * np.where(np.isneginf(lse)[..., None], 0, out)).sum(0), whole
