#pragma once

// From the C structs to the C++ ones. A null pointer becomes the default.

#include "core/check.h"
#include "rootdk/attention.h"
#include "rootdk/c_api.h"
#include "rootdk/fp8.h"
#include "rootdk/positions.h"

namespace rootdk::c_api {

// What a pointer to a result points to.
template <class T>
T& result(T* pointer, const char* name) {
  require(pointer != nullptr, "c_api: ", name, " is null");
  return *pointer;
}

TensorView view(const rootdk_tensor* tensor);
rootdk_tensor c_tensor(const ConstTensorView& view);
Scale convert_scale(int32_t kind, double value);
AttentionStats convert(const rootdk_attention_stats* stats);
// In C the request for statistics travels with them.
AttentionParams convert(const rootdk_attention_params* params, const rootdk_attention_stats* stats = nullptr);
AttentionSaved convert(const rootdk_attention_saved* saved);
QuantizedViews convert(const rootdk_quantized* to);
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
    explicit CallerExecutor(const rootdk_execution& execution) : execution_(execution) {}
    int threads() const override { return execution_.parallel_threads > 0 ? execution_.parallel_threads : 1; }
    void run(std::int64_t count, Task task, void* context) override {
      execution_.parallel_for(execution_.parallel_user, count, task, context);
    }

   private:
    const rootdk_execution& execution_;
  };

  rootdk_execution given_;
  CallerExecutor caller_;
  Execution execution_;
};

}  // namespace rootdk::c_api
