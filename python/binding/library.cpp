#include "library.h"

namespace rootdk::binding {
namespace {

// By address: the package has loaded the library.
struct Library {
  decltype(&rootdk_attention) attention = nullptr;
  decltype(&rootdk_attention_backward) attention_backward = nullptr;
  decltype(&rootdk_struct_init) struct_init = nullptr;
  rootdk_attention_params params = {};  // the defaults
  rootdk_execution execution = {};
  PyObject* check = nullptr;  // raises the error of a status
};
Library library;

// Scratch memory of one call from PyTorch's allocator, which keeps it until the work of the stream that comes before
// its next use is done, and gives a captured graph memory that stays with it.
class Scratch {
 public:
  explicit Scratch(int device) : device_(device) {}
  ~Scratch() { release(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  bool failed() const { return failed_; }

  void release() {
    if (memory_ && memory_->free) memory_->free(memory_);
    memory_ = nullptr;
  }

  static void* allocate(void* scratch, size_t bytes) { return static_cast<Scratch*>(scratch)->allocate(bytes); }

 private:
  void* allocate(size_t bytes) {
    int64_t size = static_cast<int64_t>(bytes);
    DLTensor like = {};
    like.device_type = kDLCuda;
    like.device_id = device_;
    like.rank = 1;
    like.code = 1;  // unsigned integers
    like.bits = 8;
    like.lanes = 1;
    like.shape = &size;
    const auto ignore = [](void*, const char*, const char*) {};  // the general way asks again, and tells
    failed_ = torch_exchange()->allocate(&like, &memory_, nullptr, ignore) != 0 || !memory_;
    return failed_ ? nullptr : static_cast<char*>(memory_->tensor.data) + memory_->tensor.byte_offset;
  }

  int device_;
  DLManagedTensor* memory_ = nullptr;
  bool failed_ = false;
};

// Runs function(execution), where null means the defaults.
template <class Function>
Outcome run(const Call& call, Function function) {
  rootdk_execution execution;
  Scratch scratch(call.q.device_index);
  const bool on_cuda = call.q.device_kind == ROOTDK_CUDA;
  if (on_cuda || call.threads) {
    execution = library.execution;
    execution.threads = call.threads;
  }
  if (on_cuda) {
    if (torch_exchange()->current_stream(kDLCuda, call.q.device_index, &execution.stream) != 0) {
      PyErr_Clear();
      return Outcome::general_way;
    }
    execution.allocate = Scratch::allocate;
    execution.allocate_user = &scratch;
  }
  PyThreadState* thread = PyEval_SaveThread();
  const rootdk_status status = function(on_cuda || call.threads ? &execution : nullptr);
  scratch.release();
  PyEval_RestoreThread(thread);
  if (status == ROOTDK_OK) return Outcome::done;
  if (status == ROOTDK_INVALID_ARGUMENT || status == ROOTDK_UNSUPPORTED || scratch.failed())
    return Outcome::general_way;
  PyObject* nothing = PyObject_CallFunction(library.check, "i", static_cast<int>(status));
  Py_XDECREF(nothing);
  return Outcome::error;
}

}  // namespace

const rootdk_attention_params& default_params() { return library.params; }

Outcome run_forward(Call& call, const rootdk_attention_stats* stats) {
  return run(call, [&](const rootdk_execution* execution) {
    return library.attention(&call.q, &call.k, &call.v, &call.out, &call.params, stats, execution);
  });
}

Outcome run_backward(const Call& call, const rootdk_attention_saved& saved, const rootdk_attention_upstream& upstream,
                     const rootdk_attention_gradients& gradients) {
  return run(call, [&](const rootdk_execution* execution) {
    return library.attention_backward(&saved, &upstream, &gradients, &call.params, execution);
  });
}

PyObject* run_for_output(Call& call, PyObject* q) {
  PyObject* out = call.given_out;
  if (out) {
    Py_INCREF(out);
  } else {
    out = new_output(call.kind, q, call.q, call.v.shape[3]);
    if (!out) return nullptr;
    if (!describe_new(call.kind, out, call.q, call.v.shape[3], &call.out)) return failed(out);
  }
  if (run_forward(call, nullptr) != Outcome::done) return failed(out);
  return !call.given_out || tell_written(call.kind, out) ? out : failed(out);
}

bool run_with_lse(Call& call, PyObject* q, PyObject** out, PyObject** lse) {
  *lse = new_row_statistic(call.kind, q, call.q);
  *out = *lse ? new_output(call.kind, q, call.q, call.v.shape[3]) : nullptr;
  rootdk_attention_stats stats = {};
  stats.struct_size = sizeof stats;
  stats.stride = 1;
  stats.lse = &call.lse;
  if (*out && describe_known(call.kind, *lse, &call.lse) &&
      describe_new(call.kind, *out, call.q, call.v.shape[3], &call.out) && run_forward(call, &stats) == Outcome::done) {
    return true;
  }
  Py_XDECREF(*lse);
  Py_XDECREF(*out);
  *out = *lse = nullptr;
  return false;
}

PyObject* connect(PyObject*, PyObject* arguments) {
  unsigned long long attention = 0, attention_backward = 0, struct_init = 0;
  PyObject* check = nullptr;
  if (!PyArg_ParseTuple(arguments, "KKKO", &attention, &attention_backward, &struct_init, &check)) return nullptr;
  library.attention = reinterpret_cast<decltype(library.attention)>(attention);
  library.attention_backward = reinterpret_cast<decltype(library.attention_backward)>(attention_backward);
  library.struct_init = reinterpret_cast<decltype(library.struct_init)>(struct_init);
  library.struct_init(&library.params, ROOTDK_STRUCT_ATTENTION_PARAMS, sizeof library.params);
  library.struct_init(&library.execution, ROOTDK_STRUCT_EXECUTION, sizeof library.execution);
  Py_INCREF(check);
  library.check = check;
  Py_RETURN_NONE;
}

PyObject* general_way() {
  Py_INCREF(Py_NotImplemented);
  return Py_NotImplemented;
}

PyObject* failed(PyObject* given_up) {
  Py_XDECREF(given_up);
  return PyErr_Occurred() ? nullptr : general_way();
}

}  // namespace rootdk::binding
