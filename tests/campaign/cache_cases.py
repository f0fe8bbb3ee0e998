"""Schedules of a KV cache: how one is drawn, run on the library and on the model of cache_model.py, and compared.

A schedule is a list of operations; a sequence is named by a number that is taken modulo the open sequences, so that a
schedule stays one whatever operations are taken out of it."""

import numpy as np

import oracle
import rootdk
import tolerance
from arrays import TYPES, Place, draw_values, round_to
from cache_model import Full, Model, Sequence, near_a_tie, rotated, stored

DIMS = (8, 16, 16, 24, 32, 33, 40, 64, 64, 65, 80, 128)


def _some(random, share):
    return bool(random.random() < share)


# --- drawing -------------------------------------------------------------------------------------------------------


def draw(random, device):
    cuda = device == "cuda"
    dtype = str(random.choice(["f32", "bf16", "f16", "i8", "f8e4m3"]))
    q_dtype = str(random.choice(["f32", "bf16", "f16"] + ([] if cuda else ["f64"])))
    if cuda and dtype in ("bf16", "f16") and _some(random, 0.7):
        q_dtype = dtype
    c = {
        "kind": "cache",
        "seed": int(random.integers(2**31)),
        "dtype": dtype,
        "q_dtype": q_dtype,
        "place": "cuda" if cuda else "torch" if q_dtype == "bf16" or _some(random, 0.3) else "numpy",
        "target": int(random.integers(1000)),
        "threads": int(random.choice([1, 2], p=[0.85, 0.15])),
        "layout": "paged" if _some(random, 0.8) else "contiguous",
        "page_size": int(random.choice([16, 16, 32, 48, 64])),
        "pages": int(random.choice([4, 8, 16, 24])),
        "layers": int(random.choice([1, 1, 2])),
        "kv_heads": int(random.choice([1, 2, 3])),
        "group": int(random.choice([1, 1, 2, 4, 5])),
        "head_dim": int(random.choice(DIMS)),
        "values": str(random.choice(["normal", "normal", "normal", "outliers", "zeros", "integers", "constant"])),
        "max_tokens": int(random.choice([1, 3, 20, 70])),
    }
    c["value_dim"] = c["head_dim"] if _some(random, 0.8) else int(random.choice(DIMS))
    if _some(random, 0.04):  # beyond the chunks of 1024 keys that are merged
        c.update(max_tokens=700, page_size=64, pages=48, layers=1, head_dim=16, value_dim=16, layout="paged")
    if _some(random, 0.4):
        c["rope"] = {"layout": str(random.choice(["half_split", "interleaved"])), "partial": _some(random, 0.3)}
        c["head_dim"] += c["head_dim"] % 2
    c["ops"] = [_draw_op(random, c) for _ in range(int(random.integers(4, 16)))]
    return c


def _draw_op(random, c):
    name = str(
        random.choice(
            ["open", "append", "attend", "fork", "trim", "evict", "close"], p=[0.12, 0.34, 0.28, 0.08, 0.06, 0.07, 0.05]
        )
    )
    op = {"op": name, "on": int(random.integers(100))}
    if name == "append":
        op["more"] = int(random.integers(0, 3))  # sequences beside the first
        op["layer"] = int(random.integers(0, c["layers"])) if _some(random, 0.3) else -1  # -1: every layer
    elif name == "attend":
        op["more"] = int(random.integers(0, 3))
        op["layer"] = int(random.integers(0, c["layers"]))
        op["tokens"] = int(random.choice([1, 1, 2, 5, 30]))
        op["earlier"] = _some(random, 0.15)
        if _some(random, 0.25):
            op["window"] = [int(random.integers(0, 40)), int(random.choice([0, 0, 1, 4, 17]))]
        for term, share in (("softcap", 0.15), ("relative", 0.15), ("alibi", 0.15), ("sinks", 0.2), ("scale", 0.2)):
            if _some(random, share):
                op[term] = True
        if _some(random, 0.4):
            op["stats"] = True
        if _some(random, 0.1):
            op["checks"] = ["threads", "alone"]
    elif name in ("fork", "trim"):
        op["share"] = round(float(random.random()), 2) if _some(random, 0.7) else 1.0
    elif name == "evict":
        op["first"], op["last"] = int(random.integers(0, 20)), int(random.choice([0, 1, 5, 20, 60]))
    return op


# --- running -------------------------------------------------------------------------------------------------------


class Runner:
    def __init__(self, c, report):
        self.c, self.report = c, report
        self.random = np.random.default_rng(c["seed"])
        self.place = Place(c["place"])
        self.model = Model(c)
        self.handles = []  # of the library, beside the sequences of the model
        size = {"layout": c["layout"]}
        if c["layout"] == "paged":
            size.update(page_size=c["page_size"], pages=c["pages"])
        else:
            size.update(max_sequences=self.model.pool, max_len=self.model.page_size)
        self.cache = rootdk.KvCache(
            kv_heads=c["kv_heads"], head_dim=c["head_dim"], value_dim=c["value_dim"], layers=c["layers"],
            dtype=c["dtype"], device="cuda" if c["place"] == "cuda" else "cpu", **size,
        )
        self.rope = None
        if c.get("rope"):
            rotary = c["head_dim"] // 4 * 2 if c["rope"]["partial"] else c["head_dim"]
            self.rope = {"layout": c["rope"]["layout"], "rotary": max(rotary, 2)}
            self.given_rope = rootdk.RopeParams(layout=self.rope["layout"], rotary_dim=self.rope["rotary"])
        else:
            self.given_rope = None

    def run(self):
        for number, op in enumerate(self.c["ops"]):
            if op["op"] != "open" and not self.model.sequences:
                continue
            problems = getattr(self, op["op"])(op)
            if not problems:
                usage = self.cache.usage
                ours = (usage.sequences, usage.free_pages, usage.shared_pages)
                if ours != self.model.usage():
                    problems = [f"usage (sequences, free, shared) is {ours}, expected {self.model.usage()}"]
            if problems:
                return [f"operation {number}, {op['op']}: {problem}" for problem in problems]
        return []

    def _pick(self, op):
        index = op["on"] % len(self.model.sequences)
        return self.model.sequences[index], self.handles[index]

    def _several(self, op):
        count = len(self.model.sequences)
        first = op["on"] % count
        return [(first + i) % count for i in range(min(op.get("more", 0) + 1, count))]

    def open(self, op):
        self.model.sequences.append(Sequence(self.c["layers"]))
        self.handles.append(self.cache.open())

    def close(self, op):
        index = op["on"] % len(self.handles)
        self.handles.pop(index).close()
        self.model.sequences.pop(index)

    def _refused(self, function, *arguments, **named):
        """Whether the library refuses with an error of its own."""
        try:
            function(*arguments, **named)
        except ValueError:
            return True
        return False

    def _rows(self, heads, rows, dim, role):
        """[1, heads, rows, dim] in the type of the calls; queries are always of the normal kind."""
        c = self.c
        kind = "normal" if role == "q" else c["values"]
        return round_to(draw_values(self.random, (1, heads, rows, dim), kind, c["q_dtype"], role), c["q_dtype"])

    def _given(self, x):
        return self.place.make(x, self.c["q_dtype"], str(self.random.choice(["bhsd", "bshd", "padded"])))

    def append(self, op):
        c = self.c
        picked = self._several(op)
        layers = range(c["layers"]) if op["layer"] < 0 else [op["layer"]]
        tokens = [int(self.random.integers(0 if op["more"] else 1, c["max_tokens"] + 1)) for _ in picked]
        for layer in layers:
            rows = sum(tokens)
            k = self._rows(c["kv_heads"], rows, c["head_dim"], "k")
            v = self._rows(c["kv_heads"], rows, c["value_dim"], "v")
            sequences = [self.model.sequences[i] for i in picked]
            turned = k[0]
            if self.rope:
                positions = np.concatenate(
                    [len(s.keys[layer]) + np.arange(n) for s, n in zip(sequences, tokens)] or [np.zeros(0)]
                )
                turned = rotated(k[0], positions, self.rope)
            kept, step = stored(turned, c["dtype"])
            kept_v, step_v = stored(v[0], c["dtype"])
            ties = near_a_tie(turned, kept, step), near_a_tie(v[0], kept_v, step_v)
            try:
                self.model.append(list(zip(sequences, tokens)), layer, (kept, kept_v, *ties))
                full = False
            except Full:
                full = True
            steps = [(self.handles[i], n) for i, n in zip(picked, tokens)]
            options = {"layer": layer, "rope": self.given_rope, "threads": c["threads"]}
            refused = self._refused(self.cache.append, self._given(k), self._given(v), steps, **options)
            if refused != full:
                return [f"append was {'refused' if refused else 'taken'}, expected {'a refusal' if full else 'room'}"]
            if full:
                break
        return self._lengths()

    def _lengths(self):
        for sequence, handle in zip(self.model.sequences, self.handles):
            for layer in range(self.c["layers"]):
                if handle.length(layer) != len(sequence.keys[layer]):
                    return [f"length {handle.length(layer)} of layer {layer}, expected {len(sequence.keys[layer])}"]
        return []

    def _length_outside(self, sequence, share):
        """A length that no gap forbids."""
        length = int(share * sequence.longest())
        if sequence.evicted and min(sequence.evicted) < length < max(sequence.evicted) + 1:
            length = max(sequence.evicted) + 1
        return min(length, sequence.longest())

    def fork(self, op):
        sequence, handle = self._pick(op)
        length = self._length_outside(sequence, op["share"])
        self.handles.append(handle.fork(length))
        self.model.fork(sequence, length)

    def trim(self, op):
        sequence, handle = self._pick(op)
        length = self._length_outside(sequence, op["share"])
        handle.trim(length)
        self.model.trim(sequence, length)
        return self._lengths()

    def evict(self, op):
        sequence, handle = self._pick(op)
        gone = self.model.evicts(sequence, op["first"], op["last"])
        refused = self._refused(handle.evict, keep_first=op["first"], keep_last=op["last"])
        if refused != (gone is None):
            wish = "a refusal: there would be two gaps" if gone is None else "one gap"
            return [f"evict was {'refused' if refused else 'taken'}, expected {wish}"]
        if gone is not None:
            self.model.evict(sequence, gone)

    # --- attend ---

    def attend(self, op):
        c, layer = self.c, op["layer"]
        heads = c["kv_heads"] * c["group"]
        steps = []  # (index, tokens, position)
        for index in self._several(op):
            sequence = self.model.sequences[index]
            length = len(sequence.keys[layer])
            end = length
            if op.get("earlier") and length > 1:
                end = int(self.random.integers(1, length + 1))
            first = max(sequence.evicted) + 1 if sequence.evicted and end > min(sequence.evicted) else 0
            tokens = min(op["tokens"], max(0, end - first))
            steps.append((index, tokens, end - tokens))
        rows = sum(tokens for _, tokens, _ in steps)
        q = self._rows(heads, rows, c["head_dim"], "q")
        options, given_options = self._terms(op, heads)
        given_q = self._given(q)
        given_steps = [(self.handles[i], n, p) for i, n, p in steps]
        names = oracle.ROW_STATS if op.get("stats") else ()
        more = {"window": op["window"][0], "window_keeps_first": op["window"][1]} if op.get("window") else {}

        def run(threads, target, q=given_q, steps=given_steps, names=names):
            result = self.cache.attend(
                q, steps, layer=layer, rope=self.given_rope, stats=names, threads=threads, target=target,
                **given_options, **more,
            )
            return {"out": result.out, **{n: getattr(result, n) for n in names}} if names else {"out": result}

        target, arrays = self._first_that_accepts(run)
        if target is None:
            return []
        self.report.count(target, f"{c['q_dtype']} over {c['dtype']}", "attend")
        problems, row = [], 0
        for index, tokens, position in steps:
            if tokens:
                part = {name: self.place.values(x)[:, :, row : row + tokens] for name, x in arrays.items()}
                problems += self._compare(part, q[:, :, row : row + tokens], index, position, layer, options, op)
            row += tokens
        if not problems and op.get("checks") and c["place"] != "cuda":
            again = run(3, target)
            differ = [n for n in arrays if self.place.bits(arrays[n]) != self.place.bits(again[n])]
            problems += [f"{name}: other bits on 3 threads" for name in differ]
        if not problems and op.get("checks") and names:
            plain = run(1, target, names=())
            if self.place.bits(plain["out"]) != self.place.bits(arrays["out"]):
                problems.append("out: statistics change bits of the result")
        if not problems and op.get("checks") and rows > 1:
            problems += self._one_by_one(run, target, given_q, arrays, steps)
        return [f"{target} {problem}" for problem in problems]

    def _one_by_one(self, run, target, q, arrays, steps):
        """Each token in a call of its own has the same bits."""
        row, problems = 0, []
        for index, tokens, position in steps:
            for i in range(min(tokens, 4)):
                one = run(1, target, q[:, :, row + i : row + i + 1], [(self.handles[index], 1, position + i)])
                for name in arrays:
                    if self.place.bits(arrays[name][:, :, row + i : row + i + 1]) != self.place.bits(one[name]):
                        problems.append(f"{name}: other bits alone than in a call of several tokens")
            row += tokens
        return problems[:1]

    def _first_that_accepts(self, run):
        """(target, its result): one of the targets that take the call."""
        # The targets decode and decode_... are attention()'s way to the kernels that attend has anyway.
        names = [self.report.target] if self.report.target else self.report.targets
        names = [name for name in names if not name.startswith("decode")]
        first = self.c["target"] % max(1, len(names))
        for name in names[first:] + names[:first]:
            try:
                return name, run(self.c["threads"], name)
            except ValueError as error:
                if "no implementation accepts" not in str(error):
                    raise
        self.report.count("none", self.c["dtype"], "attend refused")
        return None, None

    def _terms(self, op, heads):
        random, small = self.random, "f64" if self.c["q_dtype"] == "f64" else "f32"
        options, given = {}, {}

        def put(name, values):
            options[name] = round_to(values, small)
            given[name] = self.place.make(options[name], small)

        if op.get("softcap"):
            options["softcap"] = given["softcap"] = round(float(random.uniform(1, 30)), 2)
        if op.get("scale"):
            options["scale"] = given["scale"] = round(float(random.uniform(0.05, 0.6)), 3)
        if op.get("relative"):
            entries = int(random.choice([1, 5, 33]))
            put("relative_table", random.standard_normal((heads, entries)))
            options["relative_zero"] = given["relative_zero"] = int(random.integers(entries))
        if op.get("alibi"):
            put("alibi_slopes", random.uniform(0, 0.5, heads))
        if op.get("sinks"):
            put("sinks", random.standard_normal(heads))
        return options, given

    def _compare(self, part, q, index, position, layer, options, op):
        """One sequence's rows: attention with the keys up to the last row, and a mask."""
        c, sequence = self.c, self.model.sequences[index]
        tokens = q.shape[2]
        length = position + tokens
        if self.rope:
            turned = rotated(q[0], position + np.arange(tokens), self.rope)
            q = round_to(turned, c["q_dtype"])[None]
        stack = lambda rows: np.stack(rows[:length], 1)[None].repeat(c["group"], axis=1)
        k, v = stack(sequence.keys[layer]), stack(sequence.values[layer])
        slack = stack(sequence.key_slack[layer])
        at = position + np.arange(tokens)[:, None]
        key = np.arange(length)[None, :]
        keep = (key <= at) & ~np.isin(key, sorted(sequence.evicted))
        if op.get("window"):
            left, first = op["window"]
            keep &= (key >= at - left) | (key < first)
        truth = oracle.Forward(q, k, v, dict(options, mask=keep[None, None]), [0])
        truth.value_slack = stack(sequence.value_slack[layer])
        self._loosen(truth, q, k, slack)
        return tolerance.compare_rows(part, truth, c["q_dtype"])

    def _loosen(self, truth, q, k, slack):
        """What the cache's own types and a rotation add to the errors of attention."""
        c = self.c
        rounding = tolerance.Rounding(truth, c["q_dtype"], c["head_dim"], c["value_dim"])
        factor = abs(truth.logits.factor)
        more = np.abs(q) @ slack.swapaxes(-1, -2) * factor
        if self.rope:  # a rotated query near a tie
            largest = np.abs(q).max(-1, keepdims=True) * np.abs(k).max(-1)[..., None, :]
            more = more + 2 * TYPES[c["q_dtype"]][0] * largest * factor
        if c["dtype"] in ("bf16", "f8e4m3") and c["q_dtype"] in ("f32", "f64"):  # queries and weights as two of 8 bits
            more = more + 2.0**-16 * np.abs(q) @ np.abs(k).swapaxes(-1, -2) * factor
            rounding.half = max(rounding.half, 2.0**-16)
        if c["dtype"] == "i8":  # queries as integers of 16 bits
            more = more + 2.0**-15 * np.abs(q).max(-1, keepdims=True) * np.abs(k).sum(-1)[..., None, :] * factor
            rounding.lost = max(rounding.lost, 2.0**-14)
        if c["place"] == "cuda" and c["dtype"] in ("i8", "f8e4m3"):
            rounding.half = max(rounding.half, 2.0**-11)
            rounding.lost = max(rounding.lost, 2.0**-14)
        if c["dtype"] == "f16" or c["dtype"] == "bf16" and (c["q_dtype"] not in ("f32", "f64") or c["place"] == "cuda"):
            rounding.half = max(rounding.half, TYPES[c["dtype"]][0])
        rounding.logit = rounding.logit + more * truth.taking_part
        tolerance.prepare(truth, rounding)


def run(c, report):
    return Runner(c, report).run()
