"""How far from the oracle a result may be: rounding errors, element by element, out of the size of what is summed.

A logit is rounded in proportion to its terms, a weight in proportion to the error of its logit, a sum in proportion to
the magnitudes it adds. Kernels for 16-bit types round weights and the gradients of logits to the type once."""

import numpy as np

import oracle
from arrays import TYPES

# Over the estimates below, which are of the size that rounding errors usually have. The unluckiest element of 470,000
# configurations was 4.1 times its estimate out.
SLACK = 5.0


class Rounding:
    """The errors of one rectangle in one type."""

    def __init__(self, forward, dtype, head_dim, value_dim):
        logits = forward.logits
        # In f64 the oracle rounds as coarsely as the library, in sums of another order.
        self.unit = unit = 2.0**-50 if dtype == "f64" else 2.0**-24
        self.stored, self.largest, self.smallest = TYPES[dtype]
        self.half = 0.0 if dtype in ("f32", "f64") else self.stored  # one rounding of a weight
        # Weights below this are 0.
        self.lost = {"f16": 2.0**-24, "f64": 0.0}.get(dtype, 2.0**-122)
        self.lost_gradient = 2.0**-24 if dtype == "f16" else 0.0  # of a logit
        # Where arithmetic is in f32 any number below its smallest normal one may count as 0 (docs/operation.md).
        self.below = 0.0 if dtype == "f64" else 2.0**-126
        value = np.where(np.isneginf(logits.value), 0, logits.value)
        self.logit = unit * ((4 + np.sqrt(head_dim)) * logits.size + 4 * np.abs(value)) * ~np.isneginf(logits.value)
        self.value = value
        self.products = unit * (4 + np.sqrt(value_dim))  # relative to the size of g . v
        self.keys = unit * (4 + np.sqrt(logits.value.shape[3]))
        self.rows = unit * (4 + np.sqrt(logits.value.shape[2]))
        if forward.o.get("softcap"):
            self.logit = self.logit + 16 * unit * forward.o["softcap"] * forward.taking_part

    def cap_slope(self, c, hopper):
        """What the slope of a softcap of 1 may be off by, over a rounding of 1."""
        return {"bf16": 2.0**-17, "f16": 2.0**-20}.get(c["dtype"], 0.0) if hopper else 0.0

    def weight(self, p, lse):
        """The relative error of weights whose lse is rounded."""
        lse = np.where(np.isfinite(lse), lse, 0)
        return self.logit + self.unit * (8 + 2 * np.abs(self.value - lse) + 2 * np.abs(lse))


    def lost_products(self, count, *factors):
        """How far a sum of so many products is off, where those below the smallest normal f32 count as 0."""
        return self.below * count * (1 + sum(largest(x) for x in factors))


def largest(x):
    """The largest finite magnitude."""
    return np.abs(np.where(np.isfinite(x), x, 0)).max(initial=0)


def _off(name, actual, wanted, allowed, dtype):
    """A line where an element is further away than allowed."""
    stored, largest, smallest = TYPES[dtype]
    if actual.shape != wanted.shape:
        return [f"{name}: shape {actual.shape}, expected {wanted.shape}"]
    anything = np.isposinf(allowed)
    allowed = SLACK * allowed + 2 * stored * np.abs(wanted) + 4 * smallest
    with np.errstate(invalid="ignore"):
        close = anything | (np.abs(actual - wanted) <= allowed)
        close |= (actual == wanted) | (np.isnan(actual) & np.isnan(wanted))
        # What the type cannot hold is infinite; so is, within a factor of 16, what is summed on the way.
        close |= np.isinf(actual) & (16 * np.abs(wanted) + allowed >= largest)
    if close.all():
        return []
    error = np.where(close, 0, np.abs(actual - wanted) / allowed)
    worst = np.unravel_index(np.argmax(np.where(np.isnan(error), np.inf, error)), error.shape)
    where = [int(i) for i in worst]
    return [
        f"{name}{where} is {actual[worst]:.9g}, expected {wanted[worst]:.9g} +- {allowed[worst]:.2g} "
        f"({int((~close).sum())} of {close.size} elements are off)"
    ]


def compare_forward(built, arrays, truths):
    problems = []
    c = built.c
    for name, array in arrays.items():
        values = built.place.values(array)
        for rows, keys, truth in truths:
            if name == "weights" and c.get("packed"):
                part, wanted, allowed = _packed_weights(built, values, truth, rows, keys)
            else:
                wanted, allowed = _forward_truth(built, name, truth)
            if wanted is None:
                continue
            if name == "column_mass":
                part = values[:, :, keys]
            elif name == "weights":
                part = part if c.get("packed") else values
            else:
                part = values if name == "pooled_map" else values[:, :, rows]
            if c.get("stats_stride", 1) > 1 and name in ("entropy", "sum_p2"):
                part = np.where(np.isnan(part), wanted, part)  # rows that were not sampled
            problems += _off(name, part, wanted, allowed, c["dtype"] if name == "out" else built.small)
    return problems


def prepare(truth, rounding):
    """Gives a forward pass the errors that its results may have."""
    truth.rounding = rounding
    relative = rounding.weight(truth.p, truth.lse)
    # The denominator is off by the mean of what its terms are off by.
    relative = relative + (truth.p * rounding.logit).sum(-1, keepdims=True)
    truth.relative = np.where(np.isnan(relative), 0, relative)
    truth.stats = truth.statistics()


def _rounding(built, truth):
    if not hasattr(truth, "rounding"):
        prepare(truth, Rounding(truth, built.c["dtype"], built.c["head_dim"], built.c["value_dim"]))
    return truth.rounding


def _packed_weights(built, values, truth, rows, keys):
    """The rows of `weights` that belong to a packed sequence: its own keys, and 0 elsewhere."""
    _rounding(built, truth)
    if np.isnan(truth.p).any():
        return None, None, None
    chosen = getattr(built, "weight_rows", np.arange(built.c["q_len"]))
    inside = [(n, i - rows.start) for n, i in enumerate(chosen) if rows.start <= i < rows.stop]
    part = values[:, :, [n for n, _ in inside]]
    own = [i for _, i in inside]
    wanted, allowed = np.zeros(part.shape), np.zeros(part.shape)
    wanted[..., keys] = truth.p[:, :, own]
    allowed[..., keys] = (truth.p * (truth.relative + truth.rounding.half))[:, :, own]
    return part, wanted, allowed


def _forward_truth(built, name, truth):
    """(expected, allowed error) of one result; (None, None) where nothing is promised."""
    c, r = built.c, _rounding(built, truth)
    p = truth.p
    if name == "out" or name in oracle.ROW_STATS:
        return _row_truth(name, truth)
    if c.get("seen"):
        return None, None
    error = p * (truth.relative + r.half)
    if name == "column_mass":
        return truth.stats[name], error.sum(-2) + r.rows * p.sum(-2) + r.lost * p.shape[2]
    if name == "pooled_map":
        # The mean of rows that are each off by their own error; the sum over a cell's keys.
        return truth.pooled_map(*built.map_size), _pooled_error(truth, error + r.keys * p, built.map_size)
    if c["weights"] is not True:
        return p[:, :, built.weight_rows], error[:, :, built.weight_rows]
    return p, error


def _row_truth(name, truth):
    """(expected, allowed error) of out or of a statistic of rows."""
    r, p, relative = truth.rounding, truth.p, truth.relative
    nan_rows = np.isnan(p).any(-1)
    if name == "out":
        weights = truth.m * np.where(np.isnan(p), 0, p)
        size = np.abs(np.where(np.isfinite(truth.v), truth.v, 0))
        allowed = (weights * (relative + r.half + r.keys) + r.lost * truth.taking_part * truth.m) @ size
        allowed = allowed + r.lost_products(p.shape[3], truth.v)
        if not np.isfinite(truth.v).all():  # a weight that is 0 in f32 does not bring a NaN of v along
            lost = truth.taking_part & (np.where(np.isnan(p), 1, p) <= 2 * r.lost)
            allowed = np.where(lost.astype(float) @ (~np.isfinite(truth.v)).astype(float) > 0, np.inf, allowed)
        if hasattr(truth, "value_slack"):
            allowed = allowed + weights @ truth.value_slack
        return truth.out, allowed
    stats = truth.stats[name]
    if name in ("lse", "max_logit"):
        size = np.abs(np.where(np.isfinite(stats), stats, 0))
        allowed = r.logit.max(-1, initial=0) + 8 * r.unit + 4 * r.unit * size
    elif name == "max_weight":
        allowed = (p * relative).max(-1, initial=0)
    elif name == "entropy":
        allowed = _entropy_error(truth)
    else:
        allowed = 2 * (p * p * (relative + r.keys)).sum(-1)
    if nan_rows.any():
        if name == "max_logit":
            return None, None
        stats, allowed = np.where(nan_rows, np.nan, stats), np.where(nan_rows, 0, allowed)
    return stats, allowed


def _entropy_error(truth):
    r, p = truth.rounding, truth.p
    log = np.abs(np.log(np.where(p > 0, p, 1)))
    spread = np.where(truth.taking_part, r.value - np.where(np.isfinite(truth.max_logit), truth.max_logit, 0), 0)
    allowed = (p * (truth.relative + r.keys) * (log + 1 + np.abs(spread))).sum(-1) + 8 * r.unit
    if "sinks" in truth.o:  # the logarithm of the denominator is as large as the sink is far from the keys
        sink, lse = truth.o["sinks"][None, :, None], truth.lse[..., 0]
        both = np.isfinite(sink) & np.isfinite(lse)
        gap = np.abs(np.where(np.isfinite(sink), sink, 0) - np.where(np.isfinite(lse), lse, 0))
        allowed = allowed + 8 * r.unit * np.where(both, gap, 0)
    return allowed


def compare_rows(arrays, truth, dtype):
    """out and statistics of rows (float64 values by name) of a forward pass that was prepared."""
    problems = []
    for name, values in arrays.items():
        wanted, allowed = _row_truth(name, truth)
        if wanted is not None:
            small = "f64" if dtype == "f64" else "f32"
            problems += _off(name, values, wanted, allowed, dtype if name == "out" else small)
    return problems


def _pooled_error(truth, error, size):
    p, truth.p = truth.p, error
    try:
        return truth.pooled_map(*size)
    finally:
        truth.p = p


# --- backward ------------------------------------------------------------------------------------------------------


def compare_backward(built, gradients, truths, saved, upstream):
    c, place = built.c, built.place
    out, lse, entropy = (place.values(getattr(saved, name)) for name in ("out", "lse", "entropy"))
    if not (np.isfinite(out).all() and np.isfinite(np.where(np.isneginf(lse), 0, lse)).all()):
        return []  # what the type cannot hold
    wanted, allowed = {}, {}
    for rows, keys, truth in truths:
        part = oracle.Backward(
            truth, out[:, :, rows], lse[:, :, rows], entropy[:, :, rows], upstream["out"][:, :, rows],
            *(upstream[n][:, :, rows] if n in upstream else None for n in ("lse", "entropy")),
        )
        errors = _backward_errors(built, truth, part, lse[:, :, rows], upstream)
        for name in gradients:
            _add_part(wanted, name, part.grad[name], built, rows, keys)
            _add_part(allowed, name, errors[name], built, rows, keys)
    problems = []
    for name, array in gradients.items():
        dtype = c["dtype"] if name in "qkv" else built.small
        if name == "bias" and not c["bias"]["f32"]:
            dtype = c["dtype"]
        target = wanted.get(name)
        if target is None:
            target = allowed[name] = np.zeros(array.shape)
        problems += _off("grad_" + name, place.values(array), target, allowed[name], dtype)
    return problems


def _add_part(total, name, part, built, rows, keys):
    """Adds one rectangle's gradient to that of the whole tensor."""
    c = built.c
    shapes = {
        "q": (c["batch"], c["kv_heads"] * c["group"], c["q_len"], c["head_dim"]),
        "k": (c["batch"], c["kv_heads"], c["kv_len"], c["head_dim"]),
        "v": (c["batch"], c["kv_heads"], c["kv_len"], c["value_dim"]),
        "column_mass": (c["batch"], c["kv_heads"] * c["group"], c["kv_len"]),
    }
    if name not in shapes:
        total[name] = total.get(name, 0) + part
        return
    whole = total.setdefault(name, np.zeros(shapes[name]))
    if name in "kv":
        part = oracle.add_heads(part, c["kv_heads"]) if part.size else np.zeros(whole[:, :, keys].shape)
    where = rows if name == "q" else keys
    whole[:, :, where] += part


def _backward_errors(built, truth, part, lse, upstream):
    r = _rounding(built, truth)
    p, m = part.p, part.m
    relative = r.weight(p, lse[..., None])
    g = np.abs(part.g)
    softcap = truth.o.get("softcap")
    slope = 2 * r.logit / softcap if softcap else 0.0
    ds = part.ds_size * (relative + r.products + 4 * r.unit + slope) + r.half * np.abs(part.ds)
    ds = ds + (p > 0) * (r.lost * part.per_weight + r.lost_gradient)
    ds = ds + part.ds_size * (r.rows + r.keys) + r.half * part.ds_size * 0.02
    ds = ds + (p > 0) * r.lost_products(2 * g.shape[-1], part.g, truth.v, truth.out)
    errors = part.spread(ds)
    _add_score_errors(r, truth, part, errors)
    if built.c["place"] == "cuda" and truth.o.get("score") == "cosine":
        _add_rounded_cosines(r, part, errors)
    if softcap:  # 1 - t^2 near 0 is off by a rounding of 1, or by what docs/operation.md allows kernels of 16-bit types
        flat = part.spread(part.ds_size * (8 * r.unit + r.cap_slope(built.c, built.target == "sm90") / softcap), flat=True)
        errors = {name: x + flat.get(name, 0) for name, x in errors.items()}
    errors["v"] = (m * p * (relative + r.half + r.rows) + r.lost * (p > 0) * m).swapaxes(-1, -2) @ g
    errors["v"] = errors["v"] + r.lost_products(p.shape[2], part.g)
    errors["column_mass"] = (p * (relative + r.half + r.rows)).sum(-2) + r.lost * p.shape[2]
    if "sinks" in truth.o:
        empty, safe_lse = np.isneginf(lse)[..., None], np.where(np.isneginf(lse), 0, lse)[..., None]
        sinks = np.where(empty, -np.inf, truth.o["sinks"][None, :, None, None] - safe_lse)
        p_sink = np.exp(sinks)
        far = np.where(np.isfinite(sinks), np.abs(sinks), 0)
        share = r.unit * (16 + 2 * far + 2 * np.abs(np.where(np.isfinite(lse), lse, 0))[..., None])
        errors["sinks"] = (p_sink * part.sink_size * (share + r.products + r.rows)).sum((0, 2, 3))
    return errors


def _add_score_errors(r, truth, part, errors):
    """What the way from the gradients of scores to q and k adds to their errors."""
    logits, score = part.logits, truth.o.get("score", "dot")
    q_len, kv_len = part.p.shape[2:]
    factor, ds = max(1.0, abs(logits.factor)), part.ds
    if score == "additive":
        lost = {"q": r.lost_products(kv_len, ds, truth.o["additive_v"])}
        lost["k"] = r.lost_products(q_len, ds, truth.o["additive_v"])
    elif score == "dot":
        lost = {"q": r.lost_products(kv_len, ds, logits.k), "k": r.lost_products(q_len, ds, logits.q)}
    else:
        # Directions are added up; what is lost of their sum is divided by the length of the vector. And the cosine is
        # off by a rounding of what it adds up, which may be more than itself.
        q_norm, k_norm = logits.q_norm, logits.k_norm.swapaxes(-1, -2)
        lost = {"q": r.lost_products(kv_len, ds) / np.where(q_norm == 0, 1, q_norm)}
        lost["k"] = r.lost_products(q_len, ds) / np.where(k_norm == 0, 1, k_norm)
        cosine = r.unit * (4 + np.sqrt(logits.q.shape[-1])) * logits.cosine_size
        for name, more in part.along_own(np.abs(ds) * abs(logits.factor), cosine, np.abs).items():
            errors[name] = errors[name] + more
    for name, more in lost.items():
        errors[name] = errors[name] + factor * more


def _add_rounded_cosines(r, part, errors):
    """On CUDA the gradient by q . k, not by the cosine, is rounded to the type: f16 loses what is small of it. Vectors
    there have their largest element at 1 or above. What is lost counts along the other vector, and along the vector
    itself, which is taken out."""
    logits = part.logits
    seen = (part.p > 0) * r.lost_gradient * abs(logits.factor)

    def enlarged(x):
        top = np.abs(x).max(-1, keepdims=True, initial=0)
        return np.maximum(1, 2 / np.where(top == 0, 1, top))

    more_q, more_k = enlarged(logits.q), enlarged(logits.k)
    q, k = np.abs(logits.q) * more_q, np.abs(logits.k) * more_k
    errors["q"] = errors["q"] + (seen @ k) * more_q
    errors["k"] = errors["k"] + (seen.swapaxes(-1, -2) @ q) * more_k
    product = np.abs(logits.score) * (logits.q_norm * more_q) * (logits.k_norm * more_k.swapaxes(-1, -2))
    for name, more in part.along_own(seen, product, np.abs).items():
        errors[name] = errors[name] + more
