#include <algorithm>

#include "c_api/status.h"
#include "models/builtin.h"
#include "models/embed.h"
#include "models_api/handles.h"
#include "models_api/interruptible.h"

using namespace rootdk;
using namespace rootdk::models_api;
using rootdk::c_api::guarded;

rootdk_status rootdk_model_embed(const rootdk_model* model, const char* const* texts, const size_t* text_bytes,
                                 size_t count, int32_t pooling, int32_t normalise, const rootdk_tensor* out,
                                 int64_t* truncated, int32_t threads) {
  return guarded([&] {
    const LoadedModel& subject = loaded(model);
    require((texts != nullptr && text_bytes != nullptr) || count == 0, "c_api: texts or text_bytes is null, count ",
            count);
    require(pooling >= ROOTDK_POOLING_STORED && pooling <= ROOTDK_POOLING_FIRST_TOKEN, "embed: pooling ", pooling,
            " is no rootdk_pooling");
    std::vector<std::string> lines;
    for (size_t i = 0; i < count; ++i) {
      require(texts[i] != nullptr, "embed: text ", i, " is null");
      lines.emplace_back(texts[i], text_bytes[i]);
    }
    const TensorView to = c_api::view(out);
    const auto rows = static_cast<std::int64_t>(count), width = subject.model.config().d_model;
    const bool fits = to.rank == 2 && to.size(0) == rows && to.size(1) == width && to.dtype == DType::f32 &&
                      to.device.kind == DeviceKind::cpu && to.strides[1] == 1 && (rows < 2 || to.strides[0] == width);
    require(to.data != nullptr && fits, "embed: out is ", describe(to), ", expected contiguous f32 [", rows, ", ",
            width, "] on the CPU");
    InterruptibleExecutor executor(executor_of(threads));
    const Pooling chosen =
        pooling == ROOTDK_POOLING_STORED ? stored_pooling(model_folder(subject.name)) : static_cast<Pooling>(pooling);
    std::int64_t cut = 0;
    const Tensor vectors = embed_texts(subject, lines,
                                       {.pooling = chosen,
                                        .normalise = normalise != 0,
                                        .max_tokens = stored_max_tokens(model_folder(subject.name)),
                                        .executor = &executor},
                                       &cut);
    std::copy_n(vectors.view().as<float>(), vectors.elements(), to.as<float>());
    if (truncated) *truncated = cut;
  });
}
