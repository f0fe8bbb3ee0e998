// rootdk generate MODEL --prompts FILE: a line of JSON for each prompt, and one for each answer.

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/check.h"
#include "models/batch.h"
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

// Reads one field of a line into a number, where it is there.
template <class T>
void read_field(const OrderedJson& line, const char* name, const std::string& where, T& into) {
  const auto found = line.find(name);
  if (found == line.end()) return;
  const bool fits = std::is_integral_v<T> ? found->is_number_integer() : found->is_number();
  require(fits, where, ": ", name, " is ", found->dump(), ", not a ", std::is_integral_v<T> ? "whole " : "", "number");
  into = found->template get<T>();
}

void apply_fields(const OrderedJson& line, const std::string& where, GenerateParams& params) {
  SamplingParams& sampling = params.sampling;
  for (const auto& [name, value] : line.items()) {
    static constexpr std::string_view kKnown[] = {"prompt", "ids",   "max_new", "temperature",        "top_k",
                                                  "top_p",  "min_p", "seed",    "repetition_penalty", "stop"};
    require(std::ranges::find(kKnown, name) != std::end(kKnown), where, ": the field ", name, " is unknown");
  }
  read_field(line, "max_new", where, params.max_new);
  for (const char* name : {"temperature", "top_k", "top_p", "min_p"}) {
    if (line.contains(name)) sampling.greedy = false;
  }
  read_field(line, "temperature", where, sampling.temperature);
  read_field(line, "top_k", where, sampling.top_k);
  read_field(line, "top_p", where, sampling.top_p);
  read_field(line, "min_p", where, sampling.min_p);
  read_field(line, "repetition_penalty", where, sampling.repetition_penalty);
  std::int64_t seed = 0;
  read_field(line, "seed", where, seed);
  require(seed >= 0, where, ": seed ", seed, " must not be negative");
  if (line.contains("seed")) sampling.seed = static_cast<std::uint64_t>(seed);
}

std::vector<std::string> stop_strings(const OrderedJson& line, const std::string& where, const GenerateVerb& options) {
  const auto found = line.is_object() ? line.find("stop") : line.end();
  if (!line.is_object() || found == line.end()) return options.stop;
  if (found->is_string()) return {found->get<std::string>()};
  std::vector<std::string> strings;
  require(found->is_array(), where, ": stop is ", found->dump(), ", neither a text nor a list of texts");
  for (const auto& entry : *found) {
    require(entry.is_string(), where, ": stop has ", entry.dump(), ", which is no text");
    strings.push_back(entry.get<std::string>());
  }
  return strings;
}

Request read_request(const OrderedJson& line, const std::string& where, const GenerateVerb& options,
                     const LoadedModel& loaded) {
  require(line.is_string() || line.is_object(), where, ": ", line.dump(), " is neither a text nor an object");
  const bool text = line.is_string() || line.contains("prompt");
  require(line.is_string() || line.contains("prompt") != line.contains("ids"), where, ": give either prompt or ids");
  Request request{.where = where, .prompt = {}, .params = options.params(text)};
  if (text) {
    const OrderedJson& prompt = line.is_string() ? line : line["prompt"];
    require(prompt.is_string(), where, ": prompt is ", prompt.dump(), ", not a text");
    request.prompt = loaded.ids_of(prompt.get<std::string>());
  } else {
    for (const auto& id : line["ids"]) {
      require(id.is_number_integer(), where, ": ids has ", id.dump());
      request.prompt.push_back(id.get<std::int32_t>());
    }
  }
  if (line.is_object()) apply_fields(line, where, request.params);
  naming(where, [&] { request.stop = StopStrings(stop_strings(line, where, options)); });
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
    const OrderedJson json = OrderedJson::parse(line, nullptr, false);
    require(!json.is_discarded(), where, ": is not a line of JSON");
    requests.push_back(read_request(json, where, options, loaded));
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
      print_answer(token.request, request, batch.result(token.request));
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
