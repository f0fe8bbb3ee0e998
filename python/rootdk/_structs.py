"""The structs and numbers of the C ABI (include/rootdk/c_api.h), each declared once."""

import ctypes

F32, BF16, F16, F64, I32, I64, BOOL, I8, F8E4M3 = range(9)
DTYPE_NAMES = ("f32", "bf16", "f16", "f64", "i32", "i64", "bool", "i8", "f8e4m3")
ARRAY_TYPES = ", ".join(DTYPE_NAMES[:F8E4M3])  # f8e4m3 is what a cache holds
DTYPE_SIZES = (4, 2, 2, 8, 4, 8, 1, 1, 1)
CPU, CUDA = 0, 1
SCORES = {"dot": 0, "cosine": 1, "additive": 2}
COMPUTE = {"f8e4m3": 1}
MAX_RANK = 6

pointer = ctypes.c_void_p
int32 = ctypes.c_int32
int64 = ctypes.c_int64
double = ctypes.c_double
size = ctypes.c_size_t


class Tensor(ctypes.Structure):
    """rootdk_tensor"""

    _fields_ = [
        ("data", pointer),
        ("dtype", int32),
        ("device_kind", int32),
        ("device_index", int32),
        ("rank", int32),
        ("shape", int64 * MAX_RANK),
        ("strides", int64 * MAX_RANK),
    ]


class AttentionParams(ctypes.Structure):
    """rootdk_attention_params"""

    _fields_ = [
        ("struct_size", size),
        ("score", int32),
        ("scale_kind", int32),
        ("scale", double),
        ("temperature", double),
        ("softcap", double),
        ("causal", int32),
        ("window_left", int64),
        ("window_right", int64),
        ("kv_lengths", pointer),
        ("mask", pointer),
        ("block_mask", pointer),
        ("block_q", int64),
        ("block_kv", int64),
        ("q_starts", pointer),
        ("kv_starts", pointer),
        ("max_q_len", int64),
        ("max_kv_len", int64),
        ("bias", pointer),
        ("relative_table", pointer),
        ("relative_zero", int64),
        ("alibi_slopes", pointer),
        ("sinks", pointer),
        ("additive_v", pointer),
        ("dropout", double),
        ("seed", ctypes.c_uint64),
        ("compute", int32),
        ("rotate", int32),
        ("q_scales", pointer),
        ("k_scales", pointer),
        ("v_scales", pointer),
        ("q_shift", pointer),
    ]


class AttentionStats(ctypes.Structure):
    """rootdk_attention_stats"""

    _fields_ = [
        ("struct_size", size),
        ("lse", pointer),
        ("max_logit", pointer),
        ("max_weight", pointer),
        ("entropy", pointer),
        ("sum_p2", pointer),
        ("column_mass", pointer),
        ("pooled_map", pointer),
        ("weights", pointer),
        ("weight_rows", pointer),
        ("stride", int64),
    ]


class Execution(ctypes.Structure):
    """rootdk_execution"""

    _fields_ = [
        ("struct_size", size),
        ("threads", int32),
        ("parallel_for", pointer),
        ("parallel_user", pointer),
        ("parallel_threads", int32),
        ("target", pointer),
        ("workspace_limit", size),
        ("stream", pointer),
        ("workspace", pointer),
        ("workspace_bytes", size),
        ("allocate", pointer),
        ("allocate_user", pointer),
    ]


class AttentionSaved(ctypes.Structure):
    """rootdk_attention_saved"""

    _fields_ = [("struct_size", size)] + [(name, pointer) for name in ("q", "k", "v", "out", "lse", "entropy")]


class AttentionUpstream(ctypes.Structure):
    """rootdk_attention_upstream"""

    _fields_ = [("struct_size", size)] + [(name, pointer) for name in ("out", "lse", "entropy")]


QUANTIZED = ("q", "k", "v", "q_scales", "k_scales", "v_scales", "q_shift", "key_mean")


class Quantized(ctypes.Structure):
    """rootdk_quantized"""

    _fields_ = [("struct_size", size)] + [(name, pointer) for name in QUANTIZED]


GRADIENTS = ("q", "k", "v", "bias", "relative_table", "alibi_slopes", "sinks", "additive_v", "column_mass")


class AttentionGradients(ctypes.Structure):
    """rootdk_attention_gradients"""

    _fields_ = [("struct_size", size)] + [(name, pointer) for name in GRADIENTS]


class RopeParams(ctypes.Structure):
    """rootdk_rope_params"""

    _fields_ = [
        ("struct_size", size),
        ("layout", int32),
        ("rotary_dim", int64),
        ("base", double),
        ("scaling", int32),
        ("factor", double),
        ("original_max_position", int64),
        ("beta_fast", double),
        ("beta_slow", double),
        ("truncate", int32),
        ("attention_factor", double),
        ("low_freq_factor", double),
        ("high_freq_factor", double),
        ("offset", int64),
    ]


class KvCacheConfig(ctypes.Structure):
    """rootdk_kv_cache_config"""

    _fields_ = [
        ("struct_size", size),
        ("layout", int32),
        ("dtype", int32),
        ("layers", int64),
        ("kv_heads", int64),
        ("head_dim", int64),
        ("value_dim", int64),
        ("page_size", int64),
        ("pages", int64),
        ("max_sequences", int64),
        ("max_len", int64),
        ("device_kind", int32),
        ("device_index", int32),
        ("k", pointer),
        ("v", pointer),
        ("k_scales", pointer),
        ("v_scales", pointer),
    ]


class KvUsage(ctypes.Structure):
    """rootdk_kv_usage"""

    _fields_ = [(name, int64) for name in ("sequences", "pages", "free_pages", "shared_pages", "bytes")]


class KvStep(ctypes.Structure):
    """rootdk_kv_step"""

    _fields_ = [(name, int64) for name in ("sequence", "tokens", "position")]


class AttendParams(ctypes.Structure):
    """rootdk_attend_params"""

    _fields_ = [
        ("struct_size", size),
        ("layer", int64),
        ("scale_kind", int32),
        ("scale", double),
        ("temperature", double),
        ("softcap", double),
        ("window_left", int64),
        ("window_keeps_first", int64),
        ("relative_table", pointer),
        ("relative_zero", int64),
        ("alibi_slopes", pointer),
        ("sinks", pointer),
        ("rope", pointer),
    ]


class AttendStats(ctypes.Structure):
    """rootdk_attend_stats"""

    _fields_ = [("struct_size", size)] + [
        (name, pointer) for name in ("lse", "max_logit", "max_weight", "entropy", "sum_p2")
    ]
