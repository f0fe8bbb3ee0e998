// rootdk generate MODEL --prompts FILE: a line of JSON for each prompt, and one for each answer.

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/check.h"
#include "models/batch.h"
#include "models/json_fields.h"
#include "models/stop_strings.h"
#include "tools/generate.h"
#include "tools/text_file.h"

namespace rootdk::tools {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct Request {
  std::string where;  // file and line
  std::vector<std::int32_t> prompt;
  GenerateParams params;
  StopStrings stop{{}};
  std::optional<StreamDecoder> stream{};
  std::string text{};
};

// Runs body; its errors begin with the file and the line.
template <class Body>
void naming(const std::string& where, Body body) {
  try {
    body();
  } catch (const Error& error) {
    const std::string text = error.what();
    throw Error(error.kind(), text.starts_with(where) ? text : where + ": " + text);
  }
}

void refuse_unknown_fields(const JsonFields& fields) {
  static constexpr std::string_view kKnown[] = {"prompt", "ids",   "max_new", "temperature",        "top_k",
                                                "top_p",  "min_p", "seed",    "repetition_penalty", "stop"};
  for (const Json::Member& member : fields.object().items()) {
    require(std::ranges::find(kKnown, member.name) != std::end(kKnown), fields.where(), ": the field ", member.name,
            " is unknown");
  }
}

void apply_fields(const JsonFields& fields, GenerateParams& params) {
  refuse_unknown_fields(fields);
  SamplingParams& sampling = params.sampling;
  if (fields.find({"temperature", "top_k", "top_p", "min_p"})) sampling.greedy = false;
  params.max_new = fields.integer({"max_new"}, params.max_new);
  sampling.temperature = fields.number({"temperature"}, sampling.temperature);
  sampling.top_k = fields.integer({"top_k"}, sampling.top_k);
  sampling.top_p = fields.number({"top_p"}, sampling.top_p);
  sampling.min_p = fields.number({"min_p"}, sampling.min_p);
  sampling.repetition_penalty = fields.number({"repetition_penalty"}, sampling.repetition_penalty);
  sampling.seed = fields.natural({"seed"}, sampling.seed);
}

std::vector<std::string> stop_strings(const Json& line, const std::string& where, const GenerateVerb& options) {
  const Json* found = line.find("stop");
  if (!found || found->is_null()) return options.stop;
  if (found->is_string()) return {found->get<std::string>()};
  require(found->is_array(), where, ": stop is ", JsonFields::shown(*found), ", neither a text nor a list of texts");
  std::vector<std::string> strings;
  for (const Json& entry : *found) {
    require(entry.is_string(), where, ": stop has ", JsonFields::shown(entry), ", which is no text");
    strings.push_back(entry.get<std::string>());
  }
  return strings;
}

std::vector<std::int32_t> token_ids(const Json& ids, const std::string& where) {
  require(ids.is_array(), where, ": ids is ", JsonFields::shown(ids), ", not a list of numbers");
  constexpr std::int64_t kLargest = std::numeric_limits<std::int32_t>::max();
  std::vector<std::int32_t> all;
  for (const Json& id : ids) {
    const bool fits = id.is_number_unsigned() && id.get<std::uint64_t>() <= std::uint64_t{kLargest};
    require(fits, where, ": ids has ", JsonFields::shown(id), ", which is no token");
    all.push_back(id.get<std::int32_t>());
  }
  return all;
}

Request read_request(const Json& line, const std::string& where, const GenerateVerb& options,
                     const LoadedModel& loaded) {
  require(line.is_string() || line.is_object(), where, ": ", JsonFields::shown(line),
          " is neither a text nor an object");
  const Json* prompt = line.is_string() ? &line : line.find("prompt");
  const Json* ids = line.find("ids");
  require((prompt != nullptr) != (ids != nullptr), where, ": give either prompt or ids");
  Request request{.where = where, .prompt = {}, .params = options.params(prompt != nullptr)};
  if (line.is_object()) apply_fields(JsonFields(line, where), request.params);
  naming(where, [&] {
    if (prompt) {
      require(prompt->is_string(), where, ": prompt is ", JsonFields::shown(*prompt), ", not a text");
      request.prompt = loaded.ids_of(prompt->get<std::string>());
    } else {
      request.prompt = token_ids(*ids, where);
    }
    const std::vector<std::string> stop = stop_strings(line, where, options);
    require(stop.empty() || loaded.tokenizer, "stop strings need a tokenizer.json");
    request.stop = StopStrings(stop);
  });
  if (loaded.tokenizer) {
    request.stream.emplace(*loaded.tokenizer,
                           loaded.model.config().encoder ? std::vector<std::int32_t>() : request.prompt);
  }
  return request;
}

std::vector<Request> read_requests(const GenerateVerb& options, const LoadedModel& loaded) {
  std::istringstream file(read_text_file(options.prompts));
  std::vector<Request> requests;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = options.prompts + ":" + std::to_string(number);
    requests.push_back(read_request(parse_json(line, where), where, options, loaded));
  }
  require(!requests.empty(), options.prompts, ": has no prompts");
  return requests;
}

void print_json(const OrderedJson& line) {
  std::puts(line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace).c_str());
  std::fflush(stdout);
}

void print_answer(std::size_t index, const Request& request, const Generation& generation) {
  const std::vector<std::int32_t> fresh(generation.ids.end() - generation.new_tokens, generation.ids.end());
  OrderedJson line = {{"index", index}, {"new_ids", fresh}, {"new_tokens", generation.new_tokens}};
  if (request.stream) line["new_text"] = request.text;
  print_json(line);
}

}  // namespace

void run_prompts(const GenerateVerb& options) {
  const LoadedModel loaded = options.load();
  std::vector<Request> requests = read_requests(options, loaded);
  BatchGenerator batch(
      loaded.model, {.max_sequences = options.batch, .cache_type = options.cache_type, .executor = options.executor()});
  for (const Request& request : requests) naming(request.where, [&] { batch.add(request.prompt, request.params); });
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].params.max_new == 0) print_answer(i, requests[i], batch.result(i));
  }
  while (!batch.idle()) {
    for (const BatchToken& token : batch.step()) {
      Request& request = requests[token.request];
      std::string text = request.stream ? request.stop.push(request.stream->push(token.id)) : "";
      const bool stopped = request.stop.stopped();
      if (token.last && !stopped) text += request.stop.finish();
      request.text += text;
      if (options.stream) print_json({{"index", token.request}, {"id", token.id}, {"text", text}});
      if (!token.last && !stopped) continue;
      if (!token.last) batch.cancel(token.request);
      const Generation& generation = batch.result(token.request);
      print_answer(token.request, request, generation);
      if (!stopped) tell_about_length(loaded.model.config(), generation, request.params.max_new, request.where);
    }
  }
}

GenerateParams GenerateVerb::params(bool ends_with_model) const {
  const bool sampled = temperature || top_k || top_p || min_p;
  return {.max_new = max_new,
          .sampling = {.greedy = !sampled,
                       .temperature = temperature.value_or(1.0),
                       .top_k = top_k.value_or(0),
                       .top_p = top_p.value_or(1.0),
                       .min_p = min_p.value_or(0.0),
                       .repetition_penalty = repetition_penalty.value_or(1.0),
                       .seed = seed},
          .stop_at_end = (ends_with_model || stop_at_end) && !ignore_end,
          .cache = !no_cache,
          .cache_type = cache_type,
          .executor = executor()};
}

}  // namespace rootdk::tools
