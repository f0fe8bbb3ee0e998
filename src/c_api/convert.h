#pragma once

// From the C structs to the C++ ones. A null pointer becomes the default.

#include "core/check.h"
#include "rootdk/attention.h"
#include "rootdk/c_api.h"
#include "rootdk/positions.h"

namespace rootdk::c_api {

// All zero, but for its size: what the *_init functions begin with.
template <class Struct>
void clear(Struct* value) {
  *value = Struct{};
  value->struct_size = sizeof *value;
}

// A struct of another size comes from a caller that was built against another version.
template <class Struct>
void require_size(const Struct* value, const char* name) {
  require(value->struct_size == sizeof(Struct), "c_api: ", name, " has struct_size ", value->struct_size, ", expected ",
          sizeof(Struct), " (was it initialised with ", name, "_init?)");
}

// What a pointer to a result points to.
template <class T>
T& result(T* pointer, const char* name) {
  require(pointer != nullptr, "c_api: ", name, " is null");
  return *pointer;
}

TensorView view(const rootdk_tensor* tensor);
Scale convert_scale(int32_t kind, double value);
AttentionParams convert(const rootdk_attention_params* params);
AttentionStats convert(const rootdk_attention_stats* stats);
AttentionSaved convert(const rootdk_attention_saved* saved);
AttentionUpstream convert(const rootdk_attention_upstream* upstream);
AttentionGradients convert(const rootdk_attention_gradients* gradients);
RopeParams convert(const rootdk_rope_params* params);

// An Execution that keeps the caller's thread pool alive for the call.
class ConvertedExecution {
 public:
  explicit ConvertedExecution(const rootdk_execution* execution);
  ConvertedExecution(const ConvertedExecution&) = delete;
  ConvertedExecution& operator=(const ConvertedExecution&) = delete;
  operator const Execution&() const { return execution_; }

 private:
  class CallerExecutor final : public Executor {
   public:
    explicit CallerExecutor(const rootdk_execution* execution) : execution_(execution) {}
    int threads() const override { return execution_->parallel_threads > 0 ? execution_->parallel_threads : 1; }
    void run(std::int64_t count, Task task, void* context) override {
      execution_->parallel_for(execution_->parallel_user, count, task, context);
    }

   private:
    const rootdk_execution* execution_;
  };

  CallerExecutor caller_;
  Execution execution_;
};

}  // namespace rootdk::c_api
