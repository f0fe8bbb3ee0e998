#include "session.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"
#include "lab/run.h"
#include "layers/stored_matrix.h"
#include "models/generate.h"
#include "rootdk/positions.h"

namespace rootdk::live {
namespace {

// Layer after layer: [layers, the shape of each].
Array stacked(const std::vector<AttentionCapture>& layers, Tensor AttentionCapture::*field) {
  Array all;
  for (const AttentionCapture& layer : layers) {
    const Tensor& tensor = layer.*field;
    const auto values = tensor.values<float>();
    all.shape.assign(tensor.shape().begin() + 1, tensor.shape().end());  // without the batch of 1
    all.values.insert(all.values.end(), values.begin(), values.end());
  }
  all.shape.insert(all.shape.begin(), static_cast<std::int64_t>(layers.size()));
  return all;
}

// The `count` most likely tokens behind a row of logits.
Json next_tokens(const LoadedModel& loaded, std::span<const float> logits, std::size_t count) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  count = std::min(count, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  Json list = Json::array();
  for (std::size_t i = 0; i < count; ++i) {
    const float logit = logits[static_cast<std::size_t>(order[i])];
    list.push_back({{"id", order[i]},
                    {"text", loaded.texts_of(std::span(&order[i], 1))[0]},
                    {"logit", logit},
                    {"p", std::exp(logit - largest) / sum}});
  }
  return list;
}

std::string_view name_of(PositionEncoding positions) {
  switch (positions) {
    case PositionEncoding::learned: return "learned";
    case PositionEncoding::sinusoidal: return "sinusoidal";
    case PositionEncoding::rotary: return "rotary";
    case PositionEncoding::none: break;
  }
  return "none";
}

constexpr std::size_t kMostTokens = 512;  // the weights of all heads stay below what a page may hold

Score score_of(const std::string& name) {
  if (name == "cosine") return Score::cosine;
  if (name == "additive") return Score::additive;
  require(name == "dot", "live: score ", name, " is none of dot, cosine, additive");
  return Score::dot;
}

std::optional<Scale> scale_of(const Json& json) {
  if (json.is_number()) return Scale(json.get<double>());
  const auto name = json.get<std::string>();
  if (name == "model") return std::nullopt;
  if (name == "none") return Scale::none();
  if (name == "1/d") return Scale::inverse_head_dim();
  require(name == "1/sqrt(d)", "live: scale ", name, " is none of model, none, 1/d, 1/sqrt(d) and a number");
  return Scale::inverse_sqrt_head_dim();
}

}  // namespace

Knobs Knobs::read(const Json& json) {
  Knobs knobs;
  knobs.score = score_of(json.value("score", "dot"));
  if (json.contains("scale")) knobs.scale = scale_of(json.at("scale"));
  knobs.temperature = json.value("temperature", 1.0);
  knobs.softcap = json.value("softcap", 0.0);
  knobs.dropout = json.value("dropout", 0.0);
  knobs.causal = json.value("causal", true);
  knobs.window = json.value("window", -1);
  require(knobs.temperature > 0, "live: temperature ", knobs.temperature, " must be positive");
  for (const Json& pair : json.value("removed", Json::array())) knobs.removed.emplace_back(pair.at(0), pair.at(1));
  knobs.any = knobs.score != Score::dot || knobs.scale || knobs.temperature != 1.0 || knobs.softcap != 0.0 ||
              !knobs.causal || knobs.window >= 0 || !knobs.removed.empty();
  return knobs;
}

Scale Knobs::factor(std::int64_t head_dim, Scale otherwise) const {
  return scale.value_or(otherwise).factor(head_dim) / temperature;
}

namespace {

// The output projection without what the removed heads of its layer add.
std::shared_ptr<const StoredMatrix> without_heads(const Node& projection, std::int64_t value_dim,
                                                  std::span<const std::int64_t> heads) {
  const std::int64_t rows = projection.rows(), width = projection.width();
  auto numbers = std::make_shared<std::vector<float>>(static_cast<std::size_t>(rows * width));
  for (std::int64_t row = 0; row < rows; ++row) {
    float* columns = numbers->data() + row * width;
    widen_row(matrix_of(projection), row, columns);
    for (const std::int64_t head : heads) std::fill_n(columns + head * value_dim, value_dim, 0.0f);
  }
  return std::make_shared<StoredMatrix>(
      StoredMatrix{.matrix = {.rows = rows, .columns = width, .data = numbers->data()}, .owner = numbers});
}

}  // namespace

Transformer with_knobs(const Transformer& model, const Knobs& knobs) {
  TransformerConfig config = model.config();
  for (BlockConfig& block : config.stack.blocks) {
    MultiHeadConfig& attention = block.attention;
    const std::int64_t head_dim = attention.head_dim ? attention.head_dim : attention.d_model / attention.heads;
    attention.score = knobs.score;
    attention.scale = knobs.factor(head_dim, attention.scale);
    if (knobs.softcap > 0) attention.softcap = knobs.softcap;
    attention.causal = attention.causal && knobs.causal;
    if (knobs.window >= 0) attention.window_left = knobs.window;
  }
  Transformer changed(std::move(config));
  std::map<const Node*, std::vector<std::int64_t>> removed;  // by the output projection of their layer
  const auto layers = static_cast<std::int64_t>(changed.blocks().size());
  for (const auto& [layer, head] : knobs.removed) {
    require(layer >= 0 && layer < layers, "live: layer ", layer, " is not in 0 to ", layers - 1);
    const MultiHeadAttention& attention = changed.blocks()[static_cast<std::size_t>(layer)].attention;
    const std::int64_t heads = attention.config().heads;
    require(head >= 0 && head < heads, "live: head ", head, " is not in 0 to ", heads - 1);
    removed[attention.out.weight.get()].push_back(head);
  }
  std::map<std::string, Value> own;
  for (const Parameter& parameter : model.parameters()) own[parameter.name] = parameter.value;
  const std::int64_t value_dim = changed.blocks()[0].attention.config().value_dim;
  for (const Parameter& parameter : changed.parameters()) {
    const auto found = own.find(parameter.name);
    if (found == own.end()) {  // the vector of the additive score, which the model never learned
      for (float& x : parameter.value->value().values<float>()) x = 1.0f;
    } else if (const Value& from = found->second; const StoredMatrix* stored = from->stored()) {
      const auto heads = removed.find(parameter.value.get());
      parameter.value->bind(heads == removed.end() ? std::shared_ptr<const StoredMatrix>(from, stored)
                                                   : without_heads(*from, value_dim, heads->second));
    } else {
      const std::span<const float> numbers = std::as_const(*from).value().values<float>();
      std::copy(numbers.begin(), numbers.end(), parameter.value->value().values<float>().begin());
    }
  }
  return changed;
}

void Session::open(const std::string& folder, const std::string& name) {
  loaded_ = LoadedModel::load(folder);
  loaded_->name = name;
  require(!loaded_->model.config().encoder, name, ": has an encoder and a decoder; the live page shows one stack");
}

const LoadedModel& Session::model() const {
  require(loaded_.has_value(), "live: no model is open");
  return *loaded_;
}

std::vector<std::int32_t> Session::ids_of(const Json& request) const {
  std::vector<std::int32_t> ids;
  if (request.contains("ids")) {
    ids = request.at("ids").get<std::vector<std::int32_t>>();
  } else {
    ids = model().ids_of(request.at("text").get<std::string>());
  }
  require(!ids.empty(), "live: the text has no tokens");
  require(ids.size() <= kMostTokens, "live: the text has ", ids.size(), " tokens; the page shows at most ",
          kMostTokens);
  return ids;
}

Answer Session::answer(const Json& request) {
  const auto what = request.at("do").get<std::string>();
  if (what == "describe") return describe();
  if (what == "run") return run(request);
  if (what == "row") return row(request);
  if (what == "labels") return labels(request);
  if (what == "continue") return continuation(request);
  if (what == "synthetic") return synthetic(request);
  if (what == "claims") return claim_list();
  if (what == "claim") return claim(request);
  if (what == "time") return forward_time(request);
  fail("live: there is no request ", what);
}

Answer Session::describe() const {
  const TransformerConfig& config = model().model.config();
  const MultiHeadConfig& attention = config.stack.blocks.at(0).attention;
  const std::int64_t head_dim = attention.head_dim ? attention.head_dim : attention.d_model / attention.heads;
  Answer answer;
  answer.json = {{"name", model().name},
                 {"architecture", config.architecture},
                 {"parameters", model().model.parameter_count()},
                 {"layers", config.stack.blocks.size()},
                 {"heads", attention.heads},
                 {"kv_heads", attention.kv_heads ? attention.kv_heads : attention.heads},
                 {"head_dim", head_dim},
                 {"d_model", config.d_model},
                 {"vocabulary", config.vocab_size},
                 {"causal", attention.causal},
                 {"positions", attention.alibi ? "alibi" : name_of(config.positions)},
                 {"scale", attention.scale.factor(head_dim)},
                 {"has_tokenizer", model().tokenizer.has_value()},
                 {"has_logits", config.output == ModelOutput::logits},
                 {"kernel", lab::kernel_in_use()}};
  return answer;
}

Answer Session::run(const Json& request) {
  const Knobs knobs = Knobs::read(request.value("knobs", Json::object()));
  const std::vector<std::int32_t> ids = ids_of(request);
  Context context{};
  const ForwardOptions options{.weights = true, .stats = true, .operands = true};
  const ModelInput input{.ids = ids};
  Transformer subject = knobs.any ? with_knobs(model().model, knobs) : model().model;
  last_ = subject.forward(context, input, options);
  last_layers_.clear();
  for (const Block& block : subject.blocks()) last_layers_.push_back(block.attention);
  Answer answer;
  answer.json = {{"ids", ids}, {"tokens", model().texts_of(ids)}};
  answer.arrays["weights"] = stacked(last_.attention, &AttentionCapture::weights);  // [layers, heads, n, n]
  answer.arrays["entropy"] = stacked(last_.attention, &AttentionCapture::entropy);  // [layers, heads, n]
  answer.arrays["max_logit"] = stacked(last_.attention, &AttentionCapture::max_logit);
  if (model().model.config().output == ModelOutput::logits) {
    const auto n = static_cast<std::int64_t>(ids.size());
    const std::int64_t position = std::clamp<std::int64_t>(request.value("position", n - 1), 0, n - 1);
    const std::int64_t vocabulary = last_.output->width();
    const std::span<const float> logits(last_.output->data() + position * vocabulary,
                                        static_cast<std::size_t>(vocabulary));
    answer.json["next"] = next_tokens(model(), logits, request.value("next", 10));
    answer.arrays["logits"] = {{vocabulary}, {logits.begin(), logits.end()}};
  }
  return answer;
}

// How this head makes logits of its scores.
Json Session::row_rules(std::size_t layer, std::int64_t head) const {
  const MultiHeadAttention& attention = last_layers_.at(layer);
  const MultiHeadConfig& config = attention.config();
  Tensor slopes(DType::f32, {config.heads});
  if (config.alibi) alibi_slopes(slopes);
  const auto index = static_cast<std::size_t>(head);
  Json rules = {{"scale", config.scale.factor(config.head_dim)},
                {"softcap", config.softcap},
                {"causal", config.causal},
                {"window_left", config.window_left},
                {"window_right", config.window_right},
                {"slope", slopes.values<float>()[index]}};
  if (attention.sinks) rules["sink"] = std::as_const(*attention.sinks).value().values<float>()[index];
  return rules;
}

Answer Session::row(const Json& request) const {
  const auto layer = request.at("layer").get<std::size_t>();
  require(layer < last_.attention.size(), "live: there is no layer ", layer, " in the last run");
  const AttentionCapture& seen = last_.attention[layer];
  const auto head = request.at("head").get<std::int64_t>();
  require(head >= 0 && head < seen.q.size(1), "live: there is no head ", head);
  const std::int64_t key_head = head / (seen.q.size(1) / seen.k.size(1));
  auto rows = [](const Tensor& tensor, std::int64_t index) {
    const std::int64_t size = tensor.size(2) * tensor.size(3);
    const auto values =
        tensor.values<float>().subspan(static_cast<std::size_t>(index * size), static_cast<std::size_t>(size));
    return Array{{tensor.size(2), tensor.size(3)}, {values.begin(), values.end()}};
  };
  Answer answer;
  answer.json = row_rules(layer, head);
  answer.arrays["q"] = rows(seen.q, head);
  answer.arrays["k"] = rows(seen.k, key_head);
  answer.arrays["v"] = rows(seen.v, key_head);
  return answer;
}

Answer Session::continuation(const Json& request) const {
  const Knobs knobs = Knobs::read(request.value("knobs", Json::object()));
  const std::vector<std::int32_t> ids = ids_of(request);
  const GenerateParams params{.max_new = request.value("count", 24),
                              .sampling = {.greedy = request.value("greedy", false),
                                           .temperature = request.value("sampling_temperature", 0.8),
                                           .seed = request.value("seed", std::uint64_t{1})},
                              .cache = knobs.score == Score::dot && knobs.causal};  // what a cache serves
  const Generation made =
      knobs.any ? generate(with_knobs(model().model, knobs), ids, params) : generate(model().model, ids, params);
  StreamDecoder decoder(model().require_tokenizer(), ids);
  std::string text;
  for (std::size_t i = ids.size(); i < made.ids.size(); ++i) text += decoder.push(made.ids[i]);
  Answer answer;
  answer.json = {{"text", text}, {"ids", made.ids}};
  return answer;
}

Json flattened(const Answer& answer) {
  Json json = answer.json;
  for (const auto& [name, array] : answer.arrays) {
    json["arrays"][name] = {{"shape", array.shape}, {"values", array.values}};
  }
  return json;
}

}  // namespace rootdk::live
