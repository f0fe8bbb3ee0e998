#include "distributed/ranks.h"

#include <cstring>
#include <exception>
#include <thread>

#include "rootdk/error.h"

namespace rootdk::test {
namespace {

bool is_key_result(const std::string& name) { return name == "grad_k" || name == "grad_v" || name == "column_mass"; }

// Results that have no rows: every rank has the whole.
bool is_whole(const std::string& name) {
  for (const char* whole :
       {"pooled_map", "grad_sinks", "grad_relative_table", "grad_alibi_slopes", "grad_additive_v"}) {
    if (name == whole) return true;
  }
  return false;
}

void copy_element(const ConstTensorView& from, std::int64_t at_from, const TensorView& to, std::int64_t at_to) {
  const std::size_t bytes = size_of(from.dtype);
  std::memcpy(to.as<std::byte>() + static_cast<std::size_t>(at_to) * bytes,
              from.as<std::byte>() + static_cast<std::size_t>(at_from) * bytes, bytes);
}

// Calls body(index in one view, index in the other) for all elements of two views of the same shape.
template <class Body>
void each_element(const ConstTensorView& a, const ConstTensorView& b, Body body, int dimension = 0,
                  std::int64_t at_a = 0, std::int64_t at_b = 0) {
  if (dimension == a.rank) return body(at_a, at_b);
  for (std::int64_t i = 0; i < a.size(dimension); ++i) {
    each_element(a, b, body, dimension + 1, at_a + i * a.stride(dimension), at_b + i * b.stride(dimension));
  }
}

void copy(const ConstTensorView& from, const TensorView& to) {
  each_element(from, to, [&](std::int64_t x, std::int64_t y) { copy_element(from, x, to, y); });
}

// Outputs begin as NaN, so that a row that is never written shows.
Tensor output(DType dtype, const Shape& shape) {
  Tensor tensor(dtype, shape);
  poison(tensor);
  return tensor;
}

// A mask or a bias: this rank's rows, all keys.
Tensor rows_of_mask(const Tensor& view, const std::vector<RowRange>& share) {
  if (!view.defined()) return {};
  return view.size(2) == 1 ? clone(view) : rows_of_share(view, 2, share);
}

}  // namespace

Tensor rows_of_share(const ConstTensorView& view, int dimension, const std::vector<RowRange>& share) {
  Shape shape(view.shape.begin(), view.shape.begin() + view.rank);
  std::int64_t rows = 0;
  for (const RowRange& range : share) rows += range.end - range.begin;
  shape[static_cast<std::size_t>(dimension)] = rows;
  Tensor part(view.dtype, shape);
  std::int64_t first = 0;
  for (const RowRange& range : share) {
    const std::int64_t count = range.end - range.begin;
    copy(view.slice(dimension, range.begin, range.end), part.view().slice(dimension, first, first + count));
    first += count;
  }
  return part;
}

void put_rows(const ConstTensorView& part, int dimension, const std::vector<RowRange>& share, const TensorView& whole) {
  std::int64_t first = 0;
  for (const RowRange& range : share) {
    const std::int64_t count = range.end - range.begin;
    copy(part.slice(dimension, first, first + count), whole.slice(dimension, range.begin, range.end));
    first += count;
  }
}

Results run_rank(Transport& transport, const AttentionCase& problem, const DistributedParams& distributed,
                 bool backward) {
  const auto rank = static_cast<std::size_t>(transport.rank());
  const auto& q_share = distributed.queries[rank];
  const auto& kv_share = distributed.keys.empty() ? q_share : distributed.keys[rank];
  const Tensor q = rows_of_share(problem.q.view(), 2, q_share), k = rows_of_share(problem.k.view(), 2, kv_share),
               v = rows_of_share(problem.v.view(), 2, kv_share);
  const Tensor mask = rows_of_mask(problem.mask, q_share), bias = rows_of_mask(problem.bias, q_share);
  AttentionParams params = problem.params();
  if (mask.defined()) params.mask = mask;
  if (bias.defined()) params.bias = bias;
  const std::int64_t batch = q.size(0), heads = q.size(1), rows = q.size(2);
  Results results;
  const DType small = problem.small();
  AttentionStats stats;
  for (const auto& [name, field] :
       {std::pair{"lse", &AttentionStats::lse}, std::pair{"max_logit", &AttentionStats::max_logit},
        std::pair{"max_weight", &AttentionStats::max_weight}, std::pair{"entropy", &AttentionStats::entropy},
        std::pair{"sum_p2", &AttentionStats::sum_p2}}) {
    results[name] = output(small, {batch, heads, rows});
    stats.*field = results[name];
  }
  stats.column_mass = results["column_mass"] = output(small, {batch, heads, k.size(2)});
  if (problem.pooled_rows) {
    stats.pooled_map = results["pooled_map"] =
        output(small, {batch, heads, problem.pooled_rows, problem.pooled_columns});
  }
  if (!exchanges_heads(distributed.scheme)) {
    stats.weights = results["weights"] = output(small, {batch, heads, rows, problem.k.view().size(2)});
  }
  results["out"] = output(problem.dtype, {batch, heads, rows, v.size(3)});
  distributed_attention(transport, q, k, v, results["out"], distributed, params, stats);
  if (!backward) return results;

  const Tensor grad_out = rows_of_share(problem.grad_out.view(), 2, q_share);
  AttentionSaved saved{.q = q, .k = k, .v = v, .out = results["out"], .lse = results["lse"]};
  AttentionUpstream upstream;
  upstream.out = grad_out;
  Tensor grad_lse, grad_entropy;
  if (problem.grad_lse.defined()) upstream.lse = grad_lse = rows_of_share(problem.grad_lse, 2, q_share);
  if (problem.grad_entropy.defined()) {
    saved.entropy = results["entropy"];
    upstream.entropy = grad_entropy = rows_of_share(problem.grad_entropy, 2, q_share);
  }
  AttentionGradients gradients;
  results["grad_q"] = output(problem.dtype, {batch, heads, rows, q.size(3)});
  gradients.q = results["grad_q"];
  gradients.k = results["grad_k"] = output(problem.dtype, {batch, k.size(1), k.size(2), k.size(3)});
  gradients.v = results["grad_v"] = output(problem.dtype, {batch, v.size(1), v.size(2), v.size(3)});
  auto parameter = [&](const char* name, const Tensor& tensor, TensorView& gradient) {
    if (tensor.defined())
      gradient = results[name] = output(tensor.dtype(), Shape(tensor.shape().begin(), tensor.shape().end()));
  };
  parameter("grad_bias", bias, gradients.bias);
  parameter("grad_relative_table", problem.relative_table, gradients.relative_table);
  parameter("grad_alibi_slopes", problem.alibi_slopes, gradients.alibi_slopes);
  parameter("grad_sinks", problem.sinks, gradients.sinks);
  parameter("grad_additive_v", problem.additive_v, gradients.additive_v);
  distributed_attention_backward(transport, saved, upstream, gradients, distributed, params);
  return results;
}

namespace {

Results one_of(const std::string& name, const Tensor& tensor) {
  Results one;
  one[name] = clone(tensor);
  return one;
}

// One row for all queries, on every rank.
bool bias_has_one_row(const std::vector<Results>& ranks) {
  bool fewer = false;
  for (const Results& rank : ranks) {
    if (rank.at("grad_bias").size(2) != 1) return false;
    fewer = fewer || rank.at("out").size(2) != 1;
  }
  return fewer;
}

}  // namespace

Results join(const std::vector<Results>& ranks, const DistributedParams& distributed) {
  Results whole;
  for (const auto& [name, first] : ranks[0]) {
    if (is_whole(name) || (name == "grad_bias" && bias_has_one_row(ranks))) {
      for (const Results& rank : ranks) {
        if (!first_difference(one_of(name, first), rank).empty()) throw Error(name + " differs between ranks");
      }
      whole[name] = clone(first);
      continue;
    }
    const Shares& shares = is_key_result(name) && !distributed.keys.empty() ? distributed.keys : distributed.queries;
    Shape shape(first.shape().begin(), first.shape().end());
    shape[2] = 0;
    for (std::size_t r = 0; r < ranks.size(); ++r) shape[2] += ranks[r].at(name).size(2);
    whole[name] = Tensor(first.dtype(), shape);
    for (std::size_t r = 0; r < ranks.size(); ++r) put_rows(ranks[r].at(name), 2, shares[r], whole[name]);
  }
  return whole;
}

Results results_of_rank(const Results& whole, const AttentionCase& problem, const DistributedParams& distributed,
                        int rank) {
  const auto r = static_cast<std::size_t>(rank);
  const auto& keys = distributed.keys.empty() ? distributed.queries[r] : distributed.keys[r];
  const bool one_bias = problem.bias.defined() && problem.bias.size(2) == 1;
  Results results;
  for (const auto& [name, tensor] : whole) {
    if (name == "weights" && exchanges_heads(distributed.scheme)) continue;
    if (is_whole(name) || (name == "grad_bias" && one_bias)) {
      results[name] = clone(tensor);
    } else {
      results[name] = rows_of_share(tensor, 2, is_key_result(name) ? keys : distributed.queries[r]);
    }
  }
  return results;
}

std::vector<std::string> errors_of_ranks(int ranks, const std::function<void(Transport&)>& body) {
  auto transports = thread_transports(ranks);
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < errors.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        body(*transports[r]);
      } catch (const std::exception& error) {
        errors[r] = error.what();
      }
      transports[r].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

Results run_threads(int ranks, const AttentionCase& problem, const DistributedParams& distributed, bool backward) {
  std::vector<Results> results(static_cast<std::size_t>(ranks));
  for (const std::string& error : errors_of_ranks(ranks, [&](Transport& transport) {
         results[static_cast<std::size_t>(transport.rank())] = run_rank(transport, problem, distributed, backward);
       })) {
    if (!error.empty()) throw Error(error);
  }
  return join(results, distributed);
}

std::string first_difference(const Results& expected, const Results& actual) {
  for (const auto& [name, tensor] : expected) {
    if (!actual.contains(name)) return name + " is missing";
    const Tensor& other = actual.at(name);
    const auto bytes = tensor.bytes();
    if (other.bytes() != bytes) return name + " has another size";
    const auto* a = tensor.view().as<unsigned char>();
    const auto* b = other.view().as<unsigned char>();
    for (std::size_t i = 0; i < bytes; ++i) {
      if (a[i] != b[i]) {
        const std::size_t element = i / size_of(tensor.dtype());
        return name + " differs at element " + std::to_string(element) + ": " +
               std::to_string(doubles(tensor)[element]) + " and " + std::to_string(doubles(other)[element]);
      }
    }
  }
  return "";
}

}  // namespace rootdk::test
