#include "models/embed.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>

#include "core/check.h"
#include "models/json_fields.h"

namespace rootdk {
namespace {

using Ids = std::vector<std::int32_t>;

// One text: the pooled states of its tokens, in double.
void pool(const float* states, std::int64_t tokens, std::int64_t width, const EmbedParams& params, float* out) {
  const std::int64_t count = params.pooling == Pooling::mean ? tokens : 1;
  std::vector<double> sums(static_cast<std::size_t>(width));
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t d = 0; d < width; ++d) sums[static_cast<std::size_t>(d)] += states[i * width + d];
  }
  double square = 0;
  for (double& sum : sums) {
    sum /= static_cast<double>(count);
    square += sum * sum;
  }
  const double factor = params.normalise && square > 0 ? 1.0 / std::sqrt(square) : 1.0;
  for (std::int64_t d = 0; d < width; ++d) out[d] = static_cast<float>(sums[static_cast<std::size_t>(d)] * factor);
}

Ids ids_of(const LoadedModel& loaded, std::span<const std::string> texts, std::size_t i) {
  try {
    return loaded.ids_of(texts[i]);
  } catch (const Error& error) {
    throw Error(error.kind(),
                "text " + std::to_string(i + 1) + " of " + std::to_string(texts.size()) + ": " + error.what());
  }
}

std::vector<Ids> token_lists(const LoadedModel& loaded, std::span<const std::string> texts, std::size_t most,
                             std::int64_t* truncated) {
  std::vector<Ids> lists;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    lists.push_back(ids_of(loaded, texts, i));
    Ids& ids = lists.back();
    if (most == 0 || ids.size() <= most) continue;
    ids[most - 1] = ids.back();  // the separator stays
    ids.resize(most);
    if (truncated) ++*truncated;
  }
  return lists;
}

// A file of settings, or what counts where there is none.
Json settings_in(const std::filesystem::path& path, Json otherwise) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return otherwise;
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return parse_json(text, path.string());
}

// sentence-transformers lists what follows the encoder. A part that is left out would give other vectors.
void check_modules(const std::filesystem::path& path) {
  const Json modules = settings_in(path, Json::array());
  require(modules.is_array(), path.string(), ": is not a list");
  for (const Json& module : modules) {
    const std::string type = JsonFields(module, path.string()).text({"type"}, "");
    const std::string_view name = std::string_view(type).substr(type.rfind('.') + 1);
    require(name == "Transformer" || name == "Pooling" || name == "Normalize", path.string(), ": the module ", type,
            " is not supported; supported: Transformer, Pooling, Normalize");
  }
}

}  // namespace

std::int64_t stored_max_tokens(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "sentence_bert_config.json";
  const Json document = settings_in(path, Json::object());
  const JsonFields fields(document, path.string());
  if (!fields.has("max_seq_length")) return 0;
  const std::int64_t tokens = fields.size({"max_seq_length"});
  require(tokens >= 2, path.string(), ": max_seq_length is ", tokens, ", expected at least 2");
  return tokens;
}

std::int64_t longest_text(const LoadedModel& loaded, const EmbedParams& params) {
  require(params.max_tokens >= 0, "embed: max_tokens ", params.max_tokens, " must not be negative");
  const std::int64_t positions = loaded.model.config().max_position;
  if (params.max_tokens == 0 || positions == 0) return std::max(params.max_tokens, positions);
  return std::min(params.max_tokens, positions);
}

Pooling stored_pooling(const std::filesystem::path& folder) {
  check_modules(folder / "modules.json");
  const std::filesystem::path path = folder / "1_Pooling" / "config.json";
  const Json document = settings_in(path, Json::object());
  require(document.is_object(), path.string(), ": is not an object");
  bool mean = false, first_token = false;
  for (const auto& [name, value] : document.items()) {
    if (!name.starts_with("pooling_mode_") || !value.is_boolean() || !value.get<bool>()) continue;
    mean = mean || name == "pooling_mode_mean_tokens";
    first_token = first_token || name == "pooling_mode_cls_token";
    require(name == "pooling_mode_mean_tokens" || name == "pooling_mode_cls_token", path.string(), ": ", name,
            " is not supported; supported: pooling_mode_mean_tokens, pooling_mode_cls_token");
  }
  // sentence-transformers joins the two into a vector of twice the width.
  require(!mean || !first_token, path.string(),
          ": pooling_mode_mean_tokens and pooling_mode_cls_token are both true; supported: one of them");
  return first_token ? Pooling::first_token : Pooling::mean;
}

Tensor embed_texts(const LoadedModel& loaded, std::span<const std::string> texts, const EmbedParams& params,
                   std::int64_t* truncated) {
  const TransformerConfig& config = loaded.model.config();
  require(config.output == ModelOutput::hidden_states && !config.encoder, "embed: ", config.architecture,
          " gives logits, not hidden states: embeddings come from encoders");
  require(params.batch_tokens >= 1, "embed: batch_tokens ", params.batch_tokens, " must be at least 1");
  const auto most = static_cast<std::size_t>(longest_text(loaded, params));
  const std::vector<Ids> lists = token_lists(loaded, texts, most, truncated);
  std::vector<std::size_t> order(lists.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return lists[i].size(); });
  Tensor result(DType::f32, {static_cast<std::int64_t>(lists.size()), config.d_model});
  Context context{.executor = params.executor};
  // Texts of one length share a forward pass: nothing is padded.
  for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    const std::size_t length = lists[order[begin]].size();
    const auto most_texts = std::max<std::size_t>(1, static_cast<std::size_t>(params.batch_tokens) / length);
    ModelInput input{.batch = 0};
    while (end < order.size() && end - begin < most_texts && lists[order[end]].size() == length) {
      input.ids.insert(input.ids.end(), lists[order[end]].begin(), lists[order[end]].end());
      ++input.batch;
      ++end;
    }
    const Value states = loaded.model.forward(context, input).output;
    for (std::size_t i = begin; i < end; ++i) {
      const auto tokens = static_cast<std::int64_t>(length);
      pool(std::as_const(*states).data() + static_cast<std::int64_t>(i - begin) * tokens * config.d_model, tokens,
           config.d_model, params, result.view().as<float>() + static_cast<std::int64_t>(order[i]) * config.d_model);
    }
  }
  return result;
}

}  // namespace rootdk
