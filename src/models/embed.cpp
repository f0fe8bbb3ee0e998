#include "models/embed.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <numeric>

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

std::vector<Ids> token_lists(const LoadedModel& loaded, std::span<const std::string> texts, std::int64_t* truncated) {
  const auto most = static_cast<std::size_t>(loaded.model.config().max_position);
  std::vector<Ids> lists;
  for (const std::string& text : texts) {
    lists.push_back(loaded.ids_of(text));
    Ids& ids = lists.back();
    if (most == 0 || ids.size() <= most) continue;
    ids[most - 1] = ids.back();  // the separator stays
    ids.resize(most);
    if (truncated) ++*truncated;
  }
  return lists;
}

}  // namespace

Pooling stored_pooling(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "1_Pooling" / "config.json";
  std::ifstream file(path, std::ios::binary);
  if (!file) return Pooling::mean;
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const Json document = parse_json(text, path.string());
  require(document.is_object(), path.string(), ": is not an object");
  for (const auto& [name, value] : document.items()) {
    if (!name.starts_with("pooling_mode_") || !value.is_boolean() || !value.get<bool>()) continue;
    if (name == "pooling_mode_mean_tokens") return Pooling::mean;
    if (name == "pooling_mode_cls_token") return Pooling::first_token;
    fail(path.string(), ": ", name, " is not supported; supported: pooling_mode_mean_tokens, pooling_mode_cls_token");
  }
  return Pooling::mean;
}

Tensor embed_texts(const LoadedModel& loaded, std::span<const std::string> texts, const EmbedParams& params,
                   std::int64_t* truncated) {
  const TransformerConfig& config = loaded.model.config();
  require(config.output == ModelOutput::hidden_states && !config.encoder, "embed: ", config.architecture,
          " gives logits, not hidden states: embeddings come from encoders");
  require(params.batch_tokens >= 1, "embed: batch_tokens ", params.batch_tokens, " must be at least 1");
  const std::vector<Ids> lists = token_lists(loaded, texts, truncated);
  std::vector<std::size_t> order(lists.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return lists[i].size(); });
  Tensor result(DType::f32, {static_cast<std::int64_t>(lists.size()), config.d_model});
  Context context{.executor = params.executor};
  // Texts of one length share a forward pass: nothing is padded.
  for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    const std::size_t length = lists[order[begin]].size();
    const auto most = std::max<std::size_t>(1, static_cast<std::size_t>(params.batch_tokens) / length);
    ModelInput input{.batch = 0};
    while (end < order.size() && end - begin < most && lists[order[end]].size() == length) {
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
