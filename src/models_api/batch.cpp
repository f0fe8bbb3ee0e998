#include "models/batch.h"

#include "c_api/status.h"
#include "models_api/handles.h"
#include "models_api/interruptible.h"

using namespace rootdk;
using namespace rootdk::models_api;
using rootdk::c_api::guarded;

struct rootdk_batch {
  std::unique_ptr<InterruptibleExecutor> executor;  // of the generator
  BatchGenerator generator;
  std::vector<rootdk_batch_token> tokens{};  // of the last step
};

namespace {

rootdk_batch& given(rootdk_batch* batch) {
  require(batch != nullptr, "c_api: the batch is null");
  return *batch;
}

}  // namespace

rootdk_status rootdk_batch_create(const rootdk_model* model, int64_t max_sequences, int32_t cache_type, int32_t threads,
                                  rootdk_batch** batch) {
  return guarded([&] {
    rootdk_batch*& made = result(batch, "batch");
    made = nullptr;
    require(max_sequences >= 1, "batch: max_sequences ", max_sequences, " must be at least 1");
    auto executor = std::make_unique<InterruptibleExecutor>(executor_of(threads));
    const BatchOptions options{
        .max_sequences = max_sequences, .cache_type = cache_type_of(cache_type), .executor = executor.get()};
    BatchGenerator generator(loaded(model).model, options);
    made = new rootdk_batch{std::move(executor), std::move(generator)};
  });
}

rootdk_status rootdk_batch_add(rootdk_batch* batch, const int32_t* ids, size_t count,
                               const rootdk_generate_params* params, size_t* request) {
  return guarded(
      [&] { result(request, "request") = given(batch).generator.add(ids_of(ids, count), convert_params(params)); });
}

rootdk_status rootdk_batch_step(rootdk_batch* batch, const rootdk_batch_token** tokens, size_t* count) {
  return guarded([&] {
    const rootdk_batch_token*& list = result(tokens, "tokens");
    size_t& number = result(count, "count");
    std::vector<rootdk_batch_token>& kept = given(batch).tokens;
    kept.clear();
    for (const BatchToken& token : batch->generator.step()) {
      kept.push_back({.request = token.request, .id = token.id, .last = token.last});
    }
    list = kept.data();
    number = kept.size();
  });
}

rootdk_status rootdk_batch_cancel(rootdk_batch* batch, size_t request) {
  return guarded([&] { given(batch).generator.cancel(request); });
}

void rootdk_batch_destroy(rootdk_batch* batch) { delete batch; }
