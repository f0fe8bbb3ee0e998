#include <algorithm>
#include <array>

#include "c_api/status.h"
#include "models/token_ids.h"
#include "models_api/handles.h"
#include "models_api/interruptible.h"

using namespace rootdk;
using namespace rootdk::models_api;
using rootdk::c_api::guarded;

namespace rootdk::models_api {

void hand_out(std::string text, const char** to, size_t* bytes) {
  thread_local std::string kept;
  const char*& pointer = result(to, "text");
  size_t& size = result(bytes, "text_bytes");
  kept = std::move(text);
  pointer = kept.c_str();
  size = kept.size();
}

}  // namespace rootdk::models_api

namespace {

int64_t output_width(const TransformerConfig& config) {
  return config.output == ModelOutput::logits ? config.decoder_vocab_size : config.d_model;
}

std::vector<std::int32_t> optional_ids(const rootdk_tensor* tensor, const char* name, std::int64_t batch) {
  return tensor ? token_ids(c_api::view(tensor), name, batch) : std::vector<std::int32_t>();
}

ModelInput convert_input(const rootdk_tensor* ids, const rootdk_tensor* mask, const rootdk_tensor* token_types,
                         const rootdk_tensor* decoder_ids, const LoadedModel& subject) {
  require(ids != nullptr, "forward: ids is not given");
  ModelInput input;
  input.ids = token_ids(c_api::view(ids), "ids");
  input.batch = ids->shape[0];
  require(!input.ids.empty(), "forward: ids is [", ids->shape[0], ", ", ids->shape[1], "], which has no tokens");
  input.mask = optional_ids(mask, "mask", input.batch);
  input.token_types = optional_ids(token_types, "token_types", input.batch);
  input.decoder_ids = optional_ids(decoder_ids, "decoder_ids", input.batch);
  for (const auto& [name, given] : {std::pair("mask", &input.mask), std::pair("token_types", &input.token_types)}) {
    require(given->empty() || given->size() == input.ids.size(), "forward: ", name, " has ", given->size(),
            " numbers, ids ", input.ids.size());
  }
  const bool both = subject.model.config().encoder.has_value();
  require(both == !input.decoder_ids.empty(), "forward: ", subject.model.config().architecture,
          both ? " needs decoder_ids" : " takes no decoder_ids");
  return input;
}

rootdk_load_params default_load_params() {
  return {.struct_size = sizeof(rootdk_load_params),
          .weights = ROOTDK_WEIGHTS_STORED,
          .activations = ROOTDK_F32,
          .threads = 0};
}

LoadOptions convert_load_params(const rootdk_load_params* params) {
  if (!params) return {};
  const auto p = read_struct(params, default_load_params(), "rootdk_load_params");
  require(p.weights >= ROOTDK_WEIGHTS_STORED && p.weights <= ROOTDK_WEIGHTS_INT4, "c_api: weights ", p.weights,
          " is no rootdk_weights");
  require(p.activations == ROOTDK_F32 || p.activations == ROOTDK_BF16, "c_api: activations ", p.activations,
          " is neither ROOTDK_F32 nor ROOTDK_BF16");
  LoadOptions options{.activations = static_cast<DType>(p.activations), .executor = executor_of(p.threads)};
  if (p.weights == ROOTDK_WEIGHTS_INT8) options.weights = WeightFormat::i8;
  if (p.weights == ROOTDK_WEIGHTS_INT4) options.weights = WeightFormat::i4;
  return options;
}

void check_output(const TensorView& out, const std::array<std::int64_t, 3>& shape) {
  require(out.data != nullptr, "forward: out is not given");
  const bool fits = out.rank == 3 && std::equal(shape.begin(), shape.end(), out.shape.begin());
  require(fits && out.dtype == DType::f32 && out.device.kind == DeviceKind::cpu && out.strides[2] == 1,
          "forward: out is ", describe(out), ", expected f32 [", shape[0], ", ", shape[1], ", ", shape[2],
          "] on the CPU with contiguous rows");
}

}  // namespace

rootdk_status rootdk_model_load(const char* folder, rootdk_model** model) {
  return guarded([&] {
    rootdk_model*& made = result(model, "model");
    made = nullptr;
    require(folder != nullptr, "c_api: the folder of a model is null");
    made = new rootdk_model{LoadedModel::load(folder)};
  });
}

void rootdk_load_params_init_sized(rootdk_load_params* params, size_t struct_size) {
  init_struct(params, struct_size, default_load_params());
}

#undef rootdk_load_params_init
void rootdk_load_params_init(rootdk_load_params* params) {
  rootdk_load_params_init_sized(params, 24);  // the size when it was new
}

rootdk_status rootdk_model_load_with(const char* folder, const rootdk_load_params* params, rootdk_model** model) {
  return guarded([&] {
    rootdk_model*& made = result(model, "model");
    made = nullptr;
    require(folder != nullptr, "c_api: the folder of a model is null");
    made = new rootdk_model{LoadedModel::load(folder, convert_load_params(params))};
  });
}

void rootdk_model_destroy(rootdk_model* model) { delete model; }

void rootdk_model_info_init_sized(rootdk_model_info* info, size_t struct_size) {
  init_struct(info, struct_size, rootdk_model_info{});
}

#undef rootdk_model_info_init
void rootdk_model_info_init(rootdk_model_info* info) {
  rootdk_model_info_init_sized(info, 96);  // the size in version 0.1
}

rootdk_status rootdk_model_describe(const rootdk_model* model, rootdk_model_info* info) {
  return guarded([&] {
    const LoadedModel& subject = loaded(model);
    const size_t size = result(info, "info").struct_size;
    c_api::require_struct_size<rootdk_model_info>(size, "rootdk_model_info");
    const TransformerConfig& config = subject.model.config();
    const MultiHeadConfig& attention = config.stack.blocks.at(0).attention;
    const rootdk_model_info made{.struct_size = sizeof *info,
                                 .architecture = config.architecture.c_str(),
                                 .parameters = subject.model.parameter_count(),
                                 .d_model = config.d_model,
                                 .layers = static_cast<int64_t>(config.stack.blocks.size()),
                                 .heads = attention.heads,
                                 .kv_heads = attention.kv_heads,
                                 .vocab_size = config.vocab_size,
                                 .output_width = output_width(config),
                                 .max_position = config.max_position,
                                 .gives_logits = config.output == ModelOutput::logits,
                                 .has_encoder = config.encoder.has_value(),
                                 .has_tokenizer = subject.tokenizer.has_value()};
    c_api::write_struct(info, size, made);
  });
}

rootdk_status rootdk_model_encode(const rootdk_model* model, const char* text, size_t text_bytes, int32_t special,
                                  const int32_t** ids, size_t* count) {
  return guarded([&] {
    thread_local std::vector<std::int32_t> kept;
    require(text != nullptr || text_bytes == 0, "c_api: text is null, text_bytes ", text_bytes);
    const int32_t*& pointer = result(ids, "ids");
    size_t& size = result(count, "count");
    kept = loaded(model).require_tokenizer().encode({text, text_bytes}, special != 0);
    pointer = kept.data();
    size = kept.size();
  });
}

rootdk_status rootdk_model_decode(const rootdk_model* model, const int32_t* ids, size_t count, int32_t with_special,
                                  const char** text, size_t* text_bytes) {
  return guarded([&] {
    hand_out(loaded(model).require_tokenizer().decode(ids_of(ids, count), with_special != 0), text, text_bytes);
  });
}

rootdk_status rootdk_model_forward(const rootdk_model* model, const rootdk_tensor* ids, const rootdk_tensor* mask,
                                   const rootdk_tensor* token_types, const rootdk_tensor* decoder_ids,
                                   const rootdk_tensor* out, int32_t threads) {
  return guarded([&] {
    const LoadedModel& subject = loaded(model);
    const ModelInput input = convert_input(ids, mask, token_types, decoder_ids, subject);
    const auto tokens = static_cast<std::int64_t>((input.decoder_ids.empty() ? input.ids : input.decoder_ids).size());
    const std::int64_t width = output_width(subject.model.config());
    const TensorView to = c_api::view(out);
    check_output(to, {input.batch, tokens / input.batch, width});
    InterruptibleExecutor executor(executor_of(threads));
    Context context{.executor = &executor};
    const ModelResult computed = subject.model.forward(context, input);
    const float* from = std::as_const(*computed.output).data();
    for (std::int64_t b = 0; b < to.size(0); ++b) {
      for (std::int64_t i = 0; i < to.size(1); ++i, from += width) {
        std::copy_n(from, width, to.as<float>() + b * to.strides[0] + i * to.strides[1]);
      }
    }
  });
}
