"""Arrays for a case: values of some kind, rounded to a type, in memory of some layout, as NumPy or PyTorch hold it."""

import numpy as np

# Unit roundoff, largest number, and the distance of the smallest numbers.
TYPES = {
    "f64": (2.0**-53, 1e308, 2.0**-1074),
    "f32": (2.0**-24, 3.4e38, 2.0**-126),
    "bf16": (2.0**-8, 3.38e38, 2.0**-126),
    "f16": (2.0**-11, 65504.0, 2.0**-24),
}
LAYOUTS = ("bhsd", "bshd", "sbhd", "padded", "offset", "negative", "broadcast")
VALUES = ("normal", "large", "tiny", "denormal", "zeros", "outliers", "constant", "integers")


def to_bf16_bits(x):
    """Float64 to the bits of a bf16, ties to even. It goes through f32, so that a value may be rounded twice: which one
    it becomes does not matter, since what it became is what both sides then take."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    rounded = np.where(np.isnan(np.asarray(x, np.float32)), np.uint32(0x7FC0), rounded)
    return rounded.astype(np.uint16)


def from_bf16_bits(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def round_to(x, dtype):
    """The values of x in a type, as float64."""
    with np.errstate(over="ignore", under="ignore"):
        if dtype == "bf16":
            return from_bf16_bits(to_bf16_bits(x))
        return np.asarray(x, {"f64": np.float64, "f32": np.float32, "f16": np.float16}[dtype]).astype(np.float64)


def draw_values(random, shape, kind, dtype, role):
    """Values of a kind, in float64 but not yet rounded. `role` is q, k or v: logits of large values stay below 1e4."""
    x = random.standard_normal(shape)
    if kind == "large":
        x *= {"q": 8.0, "k": 8.0, "v": 1000.0}[role]
    elif kind == "tiny":
        x *= 1e-3 if dtype == "f16" else 1e-18
    elif kind == "denormal":
        x[..., ::2, :] *= 1e-7 if dtype == "f16" else 1e-39
    elif kind == "zeros":
        x[random.random(x.shape[:-1]) < 0.4] = 0
    elif kind == "outliers":
        x[random.random(x.shape) < 0.02] *= 20
    elif kind == "constant":
        x[...] = random.standard_normal()
    elif kind == "integers":
        x = random.integers(-2, 3, shape).astype(np.float64)
    return x


class Place:
    """Where arrays live: NumPy or PyTorch on the CPU, or PyTorch on a CUDA device."""

    def __init__(self, kind):
        self.kind = kind  # numpy, torch or cuda
        if kind != "numpy":
            import torch

            self.torch = torch

    def _storage(self, values, dtype):
        """A contiguous array of the values (float64) in a type."""
        if dtype in ("bool", "i32", "i64"):
            array = np.ascontiguousarray(values, {"bool": np.bool_, "i32": np.int32, "i64": np.int64}[dtype])
        elif dtype == "bf16":
            array = to_bf16_bits(values).view(np.int16)
        else:
            with np.errstate(over="ignore", under="ignore"):
                array = np.ascontiguousarray(values, {"f64": np.float64, "f32": np.float32, "f16": np.float16}[dtype])
        if self.kind == "numpy":
            assert dtype != "bf16", "NumPy has no bf16"
            return array
        tensor = self.torch.from_numpy(array.copy())
        if dtype == "bf16":
            tensor = tensor.view(self.torch.bfloat16)
        return tensor.cuda() if self.kind == "cuda" else tensor

    def permuted(self, x, order):
        return x.transpose(order) if self.kind == "numpy" else x.permute(order)

    def make(self, values, dtype, layout="bhsd"):
        """An array with these values (rank 4 where the layout is not plain). What lies beside them in memory is NaN."""
        if layout == "bhsd" or values.size == 0:
            return self._storage(values, dtype)
        if layout == "bshd":
            return self.permuted(self._storage(values.transpose(0, 2, 1, 3), dtype), (0, 2, 1, 3))
        if layout == "sbhd":
            return self.permuted(self._storage(values.transpose(2, 0, 1, 3), dtype), (1, 2, 0, 3))
        if layout == "padded":
            b, h, s, d = values.shape
            wide = np.full((b, h + 1, s + 2, d + 3), np.nan if dtype not in ("bool", "i32") else 1)
            wide[:, :h, 1 : s + 1, :d] = values
            return self._storage(wide, dtype)[:, :h, 1 : s + 1, :d]
        if layout == "offset":
            flat = np.concatenate([[np.nan], values.ravel()])
            return self._storage(flat, dtype)[1:].reshape(values.shape)
        if layout == "negative" and self.kind == "numpy":
            return self._storage(values[::-1, :, ::-1], dtype)[::-1, :, ::-1]
        if layout == "broadcast":
            one = self._storage(values[:1], dtype)
            shape = values.shape
            return np.broadcast_to(one, shape) if self.kind == "numpy" else one.expand(*shape)
        return self._storage(values, dtype)

    def values(self, x):
        """Any array as float64 NumPy values."""
        if self.kind == "numpy":
            return np.asarray(x, np.float64)
        return x.detach().cpu().to(self.torch.float64).numpy()

    def bits(self, x):
        """The bytes of an array, to compare bit for bit."""
        if self.kind == "numpy":
            return np.ascontiguousarray(x).tobytes()
        x = x.detach().contiguous().cpu()
        return (x.view(self.torch.int16) if x.dtype == self.torch.bfloat16 else x).numpy().tobytes()

    def copy(self, x):
        return x.copy() if self.kind == "numpy" else x.clone()

    def synchronize(self):
        if self.kind == "cuda":
            self.torch.cuda.synchronize()
