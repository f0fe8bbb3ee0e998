#pragma once

// What the live page asks of the library: one request in JSON, one answer in JSON with arrays of floats beside it. The
// same code runs in the page (WebAssembly) and in the native program that the browser test compares it with.

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/loaded_model.h"

namespace rootdk::live {

using Json = nlohmann::json;

struct Array {
  std::vector<std::int64_t> shape{};
  std::vector<float> values{};
};

struct Answer {
  Json json = Json::object();
  std::map<std::string, Array> arrays{};
};

// What a reader may change in the attention of a model or of a synthetic head.
struct Knobs {
  Score score = Score::dot;
  std::optional<Scale> scale{};  // nothing: the model's own, 1/sqrt(d) in a synthetic head
  double temperature = 1.0, softcap = 0.0, dropout = 0.0;
  bool causal = true;
  std::int64_t window = -1;                                      // keys before the query's own; -1: all
  std::vector<std::pair<std::int64_t, std::int64_t>> removed{};  // layer, head
  bool any = false;                                              // something differs from the model's own

  static Knobs read(const Json& json);
  Scale factor(std::int64_t head_dim, Scale otherwise) const;  // scale over temperature
};

class Session {
 public:
  // A folder as LoadedModel::load takes it.
  void open(const std::string& folder, const std::string& name);

  // Throws rootdk::Error where the request is not one of those below.
  Answer answer(const Json& request);

 private:
  Answer describe() const;
  Answer run(const Json& request);           // tokens, weights of all heads, next tokens
  Answer row(const Json& request) const;     // q, k and v of one head of the last run
  Answer labels(const Json& request) const;  // what each head does, and what uniform attention would score
  Answer continuation(const Json& request) const;
  Json row_rules(std::size_t layer, std::int64_t head) const;
  const LoadedModel& model() const;
  std::vector<std::int32_t> ids_of(const Json& request) const;

  std::optional<LoadedModel> loaded_;
  ModelResult last_;
  std::vector<MultiHeadAttention> last_layers_;  // what computed it
};

// The model with other attention: its parameters copied, removed heads without their part of the output projection.
Transformer with_knobs(const Transformer& model, const Knobs& knobs);

Answer synthetic(const Json& request);  // random q and k, one head
Answer claim_list();
Answer claim(const Json& request);         // one experiment of the lab, with its figures
Answer forward_time(const Json& request);  // seconds of attention(), for bench/live.py

// Every float of an answer inside its JSON, for programs that have no other way to take them.
Json flattened(const Answer& answer);

}  // namespace rootdk::live
