"""Configurations of attention (attention_draw.py draws them): made into arrays, run forward and backward, compared.

A configuration is a plain dict that JSON holds: it says everything, so that a failing one can be printed, repeated and
made smaller."""

import numpy as np

import oracle
import rootdk
import tolerance
from arrays import Place, draw_values, round_to
from attention_draw import draw  # noqa: F401

SMALL = {"f64": "f64"}  # the type of small float tensors; f32 beside all others


# --- arrays --------------------------------------------------------------------------------------------------------


def _full_shape(c, flags, sizes):
    return tuple(n if full else 1 for n, full in zip(sizes, flags))


def _starts(random, total, sequences):
    cuts = np.sort(random.integers(0, total + 1, sequences - 1)) if sequences > 1 else []
    return np.array([0, *cuts, total])


class Built:
    """The arrays of a configuration: `given` for the library, `exact` in float64 for the oracle."""

    def __init__(self, c):
        self.c = c
        random = np.random.default_rng(c["seed"])
        self.place = place = Place(c["place"])
        dtype = c["dtype"]
        self.small = SMALL.get(dtype, "f32")
        batch, kv_heads, heads = c["batch"], c["kv_heads"], c["kv_heads"] * c["group"]
        q_len, kv_len = c["q_len"], c["kv_len"]
        shapes = {
            "q": (batch, heads, q_len, c["head_dim"]),
            "k": (batch, kv_heads, kv_len, c["head_dim"]),
            "v": (batch, kv_heads, kv_len, c["value_dim"]),
        }
        layouts = dict(zip("qkv", c["layouts"]))
        self.exact, self.options, self.given_options = {}, {}, {}
        for role, kind in zip("qkv", c["values"]):
            x = round_to(draw_values(random, shapes[role], kind, dtype, role), dtype)
            if layouts[role] == "broadcast" and batch:
                x[:] = x[:1]
            self.exact[role] = x
        self._masks(random, (batch, heads, q_len, kv_len))
        self._terms(random, (batch, heads, q_len, kv_len))
        self._plant(random, layouts)
        self.given = {role: place.make(self.planted[role], dtype, layouts[role]) for role in "qkv"}

    def _option(self, name, values, dtype):
        self.options[name] = values
        layout = self.c.get("term_layout", "bhsd") if name in ("mask", "block_mask", "bias") else "bhsd"
        if layout == "two_dimensions":  # those in front are 1 where they are left out
            left_out = name != "bias" and values.shape[:2] == (1, 1)
            self.given_options[name] = self.place.make(values[0, 0] if left_out else values, dtype)
        else:
            self.given_options[name] = self.place.make(np.asarray(values), dtype, layout)

    def _masks(self, random, sizes):
        c = self.c
        batch, heads, q_len, kv_len = sizes
        for name in ("causal", "scale", "temperature", "softcap", "score"):
            if name in c:
                self.options[name] = self.given_options[name] = c[name]
        if "window" in c:
            self.options["window"] = self.given_options["window"] = tuple(c["window"])
        if c.get("kv_lengths"):
            lengths = {
                "any": random.integers(0, kv_len + 1, batch),
                "full": np.full(batch, kv_len),
                "zero": np.zeros(batch),
            }[c["kv_lengths"]]
            self._option("kv_lengths", lengths.astype(np.int32), str(random.choice(["i32", "i64"])))
        if c.get("mask"):
            shape = _full_shape(c, c["mask"]["full"], sizes)
            self._option("mask", random.random(shape) < c["mask"]["share"], "bool")
        if c.get("block_mask"):
            size = c["block_mask"]["size"]
            blocks = (batch, heads, -(-q_len // size[0]), -(-kv_len // size[1]))
            shape = _full_shape(c, c["block_mask"]["full"], blocks)
            self._option("block_mask", random.random(shape) < c["block_mask"]["share"], "bool")
            self.options["block_size"] = self.given_options["block_size"] = tuple(size)
        if c.get("packed"):
            for name, total in (("q_starts", q_len), ("kv_starts", kv_len)):
                self._option(name, _starts(random, total, c["packed"]), "i32")
            if c.get("max_len"):
                for name, starts in (("max_q_len", "q_starts"), ("max_kv_len", "kv_starts")):
                    self.given_options[name] = int(np.diff(self.options[starts]).max(initial=0))

    def _terms(self, random, sizes):
        c, heads = self.c, sizes[1]
        if c.get("bias"):
            shape = _full_shape(c, c["bias"]["full"], sizes)
            dtype = self.small if c["bias"]["f32"] else c["dtype"]
            x = round_to(2 * random.standard_normal(shape), dtype)
            x[random.random(shape) < c["bias"]["infinite"]] = -np.inf
            self._option("bias", x, dtype)
        if c.get("relative"):
            r = c["relative"]
            table = random.standard_normal((1 if r["one_row"] else heads, r["entries"]))
            self._option("relative_table", round_to(table, self.small), self.small)
            self.options["relative_zero"] = self.given_options["relative_zero"] = r["zero"]
        if c.get("alibi"):
            self._option("alibi_slopes", round_to(random.uniform(-0.1, 0.6, heads), self.small), self.small)
        if c.get("sinks"):
            x = random.standard_normal(heads) * (30 if c["sinks"] == "large" else 1)
            if c["sinks"] == "minus_infinity":
                x[random.random(heads) < 0.6] = -np.inf
            self._option("sinks", round_to(x, self.small), self.small)
        if c.get("score") == "additive":
            a = round_to(random.standard_normal((heads, c["head_dim"])), self.small)
            self._option("additive_v", a, self.small)
        if c.get("dropout"):
            for options in (self.options, self.given_options):
                options["dropout"], options["seed"] = c["dropout"], c.get("dropout_seed", 0)

    def rectangles(self):
        """(queries, keys, options, batches) of each rectangle: the whole, or one for each packed sequence."""
        o = self.options
        if "q_starts" not in o:
            return [(slice(None), slice(None), o, range(self.c["batch"]))]
        rest = {name: x for name, x in o.items() if name not in ("q_starts", "kv_starts")}
        q, k = o["q_starts"], o["kv_starts"]
        return [(slice(q[s], q[s + 1]), slice(k[s], k[s + 1]), rest, [s]) for s in range(len(q) - 1)]

    def repeated(self, role):
        return self.exact[role].repeat(self.c["group"], axis=1)

    def forward(self, rows, keys, o, batches):
        q, k, v = self.exact["q"], self.repeated("k"), self.repeated("v")
        return oracle.Forward(q[:, :, rows], k[:, :, keys], v[:, :, keys], o, batches)

    def _keep(self):
        """[B, H, Q, K] of the whole tensors."""
        c = self.c
        keep = np.zeros((c["batch"], c["kv_heads"] * c["group"], c["q_len"], c["kv_len"]), bool)
        for rows, keys, o, _ in self.rectangles():
            part = keep[:, :, rows, keys]
            part[...] = oracle.kept(o, *part.shape)
        return keep

    def _plant(self, random, layouts):
        """NaN and infinity, where no row sees them (`hidden`), or where some do (`seen`)."""
        c = self.c
        self.planted = {role: x.copy() for role, x in self.exact.items()}
        if c.get("hidden") and "broadcast" not in layouts.values() and c["batch"]:
            seen = self._keep().any(2).reshape(c["batch"], c["kv_heads"], c["group"], c["kv_len"]).any(2)
            for role in "kv":
                bad = {"nan": [np.nan], "inf": [np.inf, -np.inf], "mix": [np.nan, np.inf, -np.inf]}[c["hidden"]]
                noise = random.choice(bad, self.planted[role].shape)
                self.planted[role] = np.where(seen[..., None], self.planted[role], noise)
        role = c.get("seen")
        if role and "broadcast" not in layouts.values() and self.exact[role].size:
            where = tuple(int(random.integers(n)) for n in self.exact[role].shape)
            self.exact[role][where] = self.planted[role][where] = np.nan


# --- running -------------------------------------------------------------------------------------------------------


class Refused(Exception):
    """No implementation takes the configuration: it is counted, and nothing is compared."""


def _targets(built, request):
    answer = rootdk.explain(*(built.given[r] for r in "qkv"), **built.given_options, **request)
    return [name for name, refusal in answer.candidates if not refusal], answer


def _request(built):
    c, request = built.c, {}
    for name in ("stats", "map_size", "weights"):
        if c.get(name):
            request[name] = c[name]
    if c.get("stats_stride"):
        request["stats_stride"] = c["stats_stride"]
    if "map_size" in request:
        # A picture has at most the cells of the matrix.
        sides = zip(request["map_size"], (c["q_len"], c["kv_len"]))
        built.map_size = request["map_size"] = tuple(max(1, min(cells, most)) for cells, most in sides)
        if c["q_len"] == 0:
            del request["map_size"]
    if "weights" in request and request["weights"] is not True:
        random = np.random.default_rng(c["seed"] + 1)
        built.weight_rows = random.integers(0, c["q_len"], request["weights"]) if c["q_len"] else np.zeros(0, int)
        request["weights"] = [int(x) for x in built.weight_rows]
        if not request["weights"]:
            del request["weights"]
    return request


def _poisoned_out(built, layout):
    """Memory for out, and the array behind it: NaN all over."""
    c, place = built.c, built.place
    shape = (c["batch"], c["kv_heads"] * c["group"], c["q_len"], c["value_dim"])
    return place.make(np.full(shape, np.nan), c["dtype"], layout)


def _forward(built, request, target, threads):
    c = built.c
    options = dict(built.given_options, **request)
    if c.get("out"):
        options["out"] = _poisoned_out(built, c["out"])
    try:
        return rootdk.attention(*(built.given[r] for r in "qkv"), target=target, threads=threads, **options)
    except rootdk.UnsupportedError as refusal:
        # explain() does not see `out`, whose address may be one that the copy engine of a device cannot write to.
        if c.get("out") and f"{target}: out " in str(refusal):
            raise Refused(str(refusal)) from refusal
        raise


def _arrays_of(result, request):
    """Every array of a result by name."""
    if not request:
        return {"out": result}
    names = tuple(request.get("stats", ()))
    names += ("pooled_map",) * ("map_size" in request) + ("weights",) * ("weights" in request)
    return {"out": result.out, **{name: getattr(result, name) for name in names}}


def run(c, report):
    """Problems of a configuration as lines of text; none: it is right. `report` counts what was run."""
    built = Built(c)
    request = _request(built)
    accepted, answer = _targets(built, request)
    if not accepted:
        raise Refused(answer.error)
    if report.target:
        if report.target not in accepted:
            raise Refused(f"{report.target} does not take it")
        target = report.target
    else:
        target = accepted[c["target"] % len(accepted)]
    built.target = target
    report.count(target, c["dtype"], "forward")
    result = _forward(built, request, target, c["threads"])
    arrays = _arrays_of(result, request)
    truths = [
        (rows, keys, built.forward(rows, keys, o, batches)) for rows, keys, o, batches in built.rectangles()
    ]
    problems = tolerance.compare_forward(built, arrays, truths)
    problems += _same_bits(built, request, arrays, target)
    if c.get("backward") and not problems:
        problems += _backward(built, truths, target, report)
    return [f"{target} {problem}" for problem in problems]


def _differences(built, ours, others, what):
    place = built.place
    shared = [name for name in ours if name in others]
    return [f"{name}: {what}" for name in shared if place.bits(ours[name]) != place.bits(others[name])]


def _same_bits(built, request, arrays, target):
    """What must not change a bit: threads, statistics, and the rest of the batch."""
    c, problems = built.c, []
    checks = c.get("checks", ())
    if "threads" in checks and c["place"] != "cuda":
        again = _arrays_of(_forward(built, request, target, 4 - c["threads"]), request)
        what = f"other bits with {4 - c['threads']} threads than {c['threads']}"
        problems += _differences(built, arrays, again, what)
    if "plain" in checks and request and target in _targets(built, {})[0] and not _has_own_kernel(c, target):
        plain = {"out": _forward(built, {}, target, c["threads"])}
        problems += _differences(built, plain, arrays, "statistics change bits of the result")
    if "alone" in checks and c["batch"] > 1 and not c.get("dropout"):
        problems += _alone(built, arrays, target)
    return problems


def _has_own_kernel(c, target):
    """Whether the statistics come from another kernel than the output alone (docs/operation.md)."""
    other = {"entropy", "sum_p2"} & set(c.get("stats", ()))
    return target == "sm90" and bool(other) and ("softcap" in c or "alibi" in c)


def _alone(built, arrays, target):
    """The last batch entry by itself has the same bits."""
    last = built.c["batch"] - 1
    options = dict(built.given_options)
    for name in ("mask", "block_mask", "bias", "kv_lengths"):
        if name in options and len(options[name].shape) != 2 and options[name].shape[0] > 1:
            options[name] = options[name][last:]
    given = (built.given[r][last:] for r in "qkv")
    out = rootdk.attention(*given, target=target, threads=1, **options)
    return _differences(built, {"out": arrays["out"][last:]}, {"out": out}, "other bits alone than in the batch")


def _backward(built, truths, target, report):
    c, place, b = built.c, built.place, built.c["backward"]
    shape = (c["batch"], c["kv_heads"] * c["group"], c["q_len"])
    random = np.random.default_rng(c["seed"] + 2)
    g = round_to(random.standard_normal((*shape, c["value_dim"])), c["dtype"])
    saved = rootdk.attention(
        *(built.given[r] for r in "qkv"), stats=["lse", "entropy"], target=target, threads=1, **built.given_options
    )
    upstream, extra = {"out": g}, {}
    for name in ("lse", "entropy"):
        if b["grad_" + name]:
            upstream[name] = round_to(random.standard_normal(shape), built.small)
            extra["grad_" + name] = place.make(upstream[name], built.small)
    if b["grad_entropy"]:
        extra["entropy"] = saved.entropy
    names = ["q", "k", "v"]
    if b["only"] is None:
        names += [n for n in ("bias", "relative_table", "alibi_slopes", "sinks", "additive_v") if n in built.options]
        names += ["column_mass"]

    # attention() has a way to the decode kernels for few queries; the backward pass has not.
    target = target.removeprefix("decode_")

    def run_it(threads):
        return rootdk.attention_backward(
            place.make(g, c["dtype"], b["layout"]), *(built.given[r] for r in "qkv"), saved.out, saved.lse,
            gradients=names, target=target, threads=threads, **extra, **built.given_options,
        )

    try:
        gradients = run_it(c["threads"])
    except ValueError as error:
        if "no implementation accepts" not in str(error):
            raise
        report.count(target, c["dtype"], "backward refused")
        return []
    report.count(target, c["dtype"], "backward")
    problems = tolerance.compare_backward(built, gradients, truths, saved, upstream)
    if "threads" in c.get("checks", ()) and c["place"] != "cuda":
        problems += _differences(built, gradients, run_it(4 - c["threads"]), "other bits on other threads, backward")
    return problems
