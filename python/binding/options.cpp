#include "options.h"

namespace rootdk::binding {
namespace {

// An option takes a value, or leaves the call to the general way.
using Setter = bool (*)(Call&, PyObject*);

bool read_integer(PyObject* value, int64_t* to) {
  if (!PyLong_CheckExact(value)) return false;
  int overflow = 0;
  *to = PyLong_AsLongLongAndOverflow(value, &overflow);
  return overflow == 0;
}

bool read_number(PyObject* value, double* to) {
  if (PyFloat_CheckExact(value)) {
    *to = PyFloat_AsDouble(value);
    return true;
  }
  int64_t whole = 0;
  if (!read_integer(value, &whole)) return false;
  *to = static_cast<double>(whole);
  return true;
}

bool is_off(Call&, PyObject* value) { return value == Py_False; }

template <double rootdk_attention_params::*field>
bool set_number(Call& call, PyObject* value) {
  return read_number(value, &(call.params.*field));
}

template <int64_t rootdk_attention_params::*field>
bool set_integer(Call& call, PyObject* value) {
  return read_integer(value, &(call.params.*field));
}

bool set_causal(Call& call, PyObject* value) {
  call.params.causal = value == Py_True;
  return value == Py_True || value == Py_False;
}

bool set_scale(Call& call, PyObject* value) {
  call.params.scale_kind = ROOTDK_SCALE_VALUE;
  return read_number(value, &call.params.scale);
}

bool set_side(PyObject* value, int64_t* to) {
  if (value == Py_None) return true;  // -1: no limit, the default
  return read_integer(value, to);
}

bool set_window(Call& call, PyObject* value) {
  rootdk_attention_params& params = call.params;
  if (PyTuple_CheckExact(value) && PyTuple_Size(value) == 2) {
    return set_side(PyTuple_GetItem(value, 0), &params.window_left) &&
           set_side(PyTuple_GetItem(value, 1), &params.window_right);
  }
  if (!read_integer(value, &params.window_left)) return false;
  params.window_right = params.window_left;
  return true;
}

bool set_block_size(Call& call, PyObject* value) {
  rootdk_attention_params& params = call.params;
  if (PyTuple_CheckExact(value) && PyTuple_Size(value) == 2) {
    return read_integer(PyTuple_GetItem(value, 0), &params.block_q) &&
           read_integer(PyTuple_GetItem(value, 1), &params.block_kv);
  }
  if (!read_integer(value, &params.block_q)) return false;
  params.block_kv = params.block_q;
  return true;
}

bool set_seed(Call& call, PyObject* value) {
  if (!PyLong_CheckExact(value)) return false;
  call.params.seed = PyLong_AsUnsignedLongLongMask(value);
  return true;
}

bool set_threads(Call& call, PyObject* value) {
  int64_t threads = 0;
  if (!read_integer(value, &threads) || threads < 0 || threads > INT32_MAX) return false;
  call.threads = static_cast<int>(threads);
  return true;
}

bool set_out(Call& call, PyObject* value) {
  call.given_out = value;
  return kind_of(value) == call.kind && is_writable(call.kind, value) && describe(call.kind, value, &call.out);
}

template <OptionArray array>
bool set_array(Call& call, PyObject* value) {
  return read_array(call, value, array);
}

// Lengths and starts are i32; others are converted on the general way.
template <OptionArray array>
bool set_integers(Call& call, PyObject* value) {
  return read_array(call, value, array) && call.arrays[array].dtype == ROOTDK_I32;
}

using P = rootdk_attention_params;

struct Option {
  const char* name;
  Setter set;
  PyObject* interned = nullptr;
};
Option options[] = {
    {"causal", set_causal},
    {"scale", set_scale},
    {"window", set_window},
    {"mask", set_array<kMask>},
    {"bias", set_array<kBias>},
    {"dropout", set_number<&P::dropout>},
    {"seed", set_seed},
    {"softcap", set_number<&P::softcap>},
    {"temperature", set_number<&P::temperature>},
    {"kv_lengths", set_integers<kKvLengths>},
    {"sinks", set_array<kSinks>},
    {"alibi_slopes", set_array<kAlibiSlopes>},
    {"q_starts", set_integers<kQStarts>},
    {"kv_starts", set_integers<kKvStarts>},
    {"max_q_len", set_integer<&P::max_q_len>},
    {"max_kv_len", set_integer<&P::max_kv_len>},
    {"relative_table", set_array<kRelativeTable>},
    {"relative_zero", set_integer<&P::relative_zero>},
    {"block_mask", set_array<kBlockMask>},
    {"block_size", set_block_size},
    {"threads", set_threads},
    {"out", set_out},
    {"stats", is_off},
    {"weights", is_off},
};

const Option* find(PyObject* name) {
  for (Option& option : options) {
    if (!option.interned) option.interned = PyUnicode_InternFromString(option.name);
    if (option.interned == name) return &option;  // names of arguments are interned
  }
  return nullptr;
}

}  // namespace

bool read_inputs(Call& call, PyObject* q, PyObject* k, PyObject* v) {
  call.kind = kind_of(q);
  if (call.kind == Kind::other || kind_of(k) != call.kind || kind_of(v) != call.kind) return false;
  if (call.kind == Kind::torch) {
    if (!torch_is_plain()) return false;
    call.wants_gradient = wants_gradient(q) || wants_gradient(k) || wants_gradient(v);
  }
  return describe_inputs(call, q, k, v);
}

bool describe_inputs(Call& call, PyObject* q, PyObject* k, PyObject* v, decltype(&describe) describes) {
  return describes(call.kind, q, &call.q) && describes(call.kind, k, &call.k) && describes(call.kind, v, &call.v) &&
         call.q.rank == 4 && call.k.rank == 4 && call.v.rank == 4;
}

void pad_rank(rootdk_tensor* tensor, int rank) {
  const int missing = rank - tensor->rank;
  if (missing <= 0) return;
  for (int i = rank - 1; i >= 0; --i) {
    tensor->shape[i] = i >= missing ? tensor->shape[i - missing] : 1;
    tensor->strides[i] = i >= missing ? tensor->strides[i - missing] : 0;
  }
  tensor->rank = rank;
}

const ArrayField& field_of(OptionArray array) {
  static constexpr ArrayField kFields[kOptionArrays] = {
      {&P::kv_lengths, 0}, {&P::mask, 4},           {&P::block_mask, 4},   {&P::q_starts, 0}, {&P::kv_starts, 0},
      {&P::bias, 4},       {&P::relative_table, 0}, {&P::alibi_slopes, 0}, {&P::sinks, 0},    {&P::additive_v, 0}};
  return kFields[array];
}

bool read_array(Call& call, PyObject* x, OptionArray array) {
  rootdk_tensor* tensor = &call.arrays[array];
  if (kind_of(x) != call.kind || !describe(call.kind, x, tensor)) return false;
  if (call.kind == Kind::torch) call.wants_gradient = call.wants_gradient || wants_gradient(x);
  const ArrayField& to = field_of(array);
  pad_rank(tensor, to.rank);
  call.params.*to.field = tensor;
  call.objects[array] = x;
  return true;
}

bool read_options(Call& call, PyObject* named) {
  PyObject *name = nullptr, *value = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(named, &position, &name, &value)) {
    const Option* option = find(name);
    if (!option) return false;
    if (value != Py_None && !option->set(call, value)) return false;
  }
  return true;
}

}  // namespace rootdk::binding
