#include "dispatch/kv_cache_world.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <sstream>

#include "core/strided.h"
#include "support/tensors.h"

namespace rootdk::test {
namespace {

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A number in [-1.7, 1.7] (deviation 1) that belongs to the key.
double value_of(std::uint64_t key) {
  return (static_cast<double>(mix(key) >> 11) * 0x1p-53 - 0.5) * 2 * std::sqrt(3.0);
}

struct ModelSequence {
  SequenceId id = SequenceId::none;
  std::vector<std::uint64_t> tokens = {};  // a token is the seed of its key and value
  std::int64_t gap_begin = 0, gap_end = 0;

  std::int64_t length() const { return static_cast<std::int64_t>(tokens.size()); }
};

// The position of something to look at again: sequences of a call and their rows.
struct Rows {
  std::vector<KvStep> steps;
  std::vector<std::size_t> model;  // index of the model sequence of each step
  std::int64_t total = 0;
};

class World {
 public:
  explicit World(const WorldConfig& config)
      : config_(config), storage_(config.memory), cache_(place_storage(config.cache)) {}

  std::string apply(const Operation& operation) {
    if (sequences_.empty() && operation.kind != Operation::Kind::open) return {};
    switch (operation.kind) {
      case Operation::Kind::open: return open();
      case Operation::Kind::append: return append(operation);
      case Operation::Kind::fork: return fork(operation);
      case Operation::Kind::trim: return trim(operation);
      case Operation::Kind::evict: return evict(operation);
      case Operation::Kind::close: return close(operation.a % sequences_.size());
      case Operation::Kind::attend: return attend(operation);
    }
    return "unknown operation";
  }

  // Everything given back: no page may stay behind.
  std::string finish() {
    while (!sequences_.empty()) close(0);
    const KvCacheUsage usage = cache_.usage();
    if (usage.free_pages != usage.pages || usage.sequences != 0) {
      return "pages leak: " + std::to_string(usage.free_pages) + " of " + std::to_string(usage.pages) + " free";
    }
    return {};
  }

 private:
  // The memory of a cache on a device, full of NaN.
  KvCacheConfig place_storage(KvCacheConfig c) {
    if (!config_.memory) return c;
    const std::int64_t value_dim = c.value_dim ? c.value_dim : c.head_dim;
    const bool paged = c.layout == KvLayout::paged;
    const std::int64_t pages = paged ? c.pages : c.max_sequences, page_size = paged ? c.page_size : c.max_len;
    const auto place = [&](DType dtype, const Shape& shape) {
      Tensor garbage(dtype, shape);
      std::memset(garbage.view().data, 0xff, garbage.bytes());
      TensorView view = garbage.view();
      const ConstTensorView placed = storage_.input(garbage);
      view.data = const_cast<void*>(placed.data);
      view.device = placed.device;
      return view;
    };
    c.device = config_.memory->device();
    c.storage.k = place(c.dtype, {c.layers, pages, c.kv_heads, page_size, c.head_dim});
    c.storage.v = place(c.dtype, {c.layers, pages, c.kv_heads, page_size, value_dim});
    if (is_quantised(c.dtype)) {
      c.storage.k_scales = place(DType::f32, {c.layers, pages, c.kv_heads, page_size});
      c.storage.v_scales = place(DType::f32, {c.layers, pages, c.kv_heads, page_size});
    }
    return c;
  }

  std::string open() {
    if (sequences_.size() < 6) sequences_.push_back({.id = cache_.open()});
    return {};
  }

  std::string close(std::size_t s) {
    cache_.close(sequences_[s].id);
    sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(s));
    return {};
  }

  std::string fork(const Operation& operation) {
    if (sequences_.size() >= 6) return {};
    ModelSequence child = sequences_[operation.a % sequences_.size()];
    std::int64_t length = operation.c % 2 ? -1 : operation.b % (child.length() + 1);
    if (length > child.gap_begin && length < child.gap_end) length = child.gap_end;
    child.id = cache_.fork(child.id, length);
    if (length >= 0) cut(child, length);
    sequences_.push_back(child);
    return {};
  }

  std::string trim(const Operation& operation) {
    ModelSequence& sequence = sequences_[operation.a % sequences_.size()];
    std::int64_t length = sequence.length() - std::min<std::int64_t>(sequence.length(), operation.b % 24);
    if (length > sequence.gap_begin && length < sequence.gap_end) length = sequence.gap_end;
    cache_.trim(sequence.id, length);
    cut(sequence, length);
    return {};
  }

  std::string evict(const Operation& operation) {
    ModelSequence& sequence = sequences_[operation.a % sequences_.size()];
    const std::int64_t first = operation.b % 20, last = operation.c % 40;
    std::int64_t begin = first, end = std::max<std::int64_t>(0, sequence.length() - last);
    const bool has_gap = sequence.gap_begin < sequence.gap_end;
    // Two gaps are refused, and nothing changes.
    const bool apart = has_gap && begin < end && (end < sequence.gap_begin || begin > sequence.gap_end);
    bool refused = false;
    try {
      cache_.evict(sequence.id, first, last);
    } catch (const Error&) {
      refused = true;
    }
    if (refused != apart) return apart ? "evict took a second gap" : "evict was refused";
    if (apart || begin >= end) return {};
    if (has_gap) begin = std::min(begin, sequence.gap_begin), end = std::max(end, sequence.gap_end);
    sequence.gap_begin = begin, sequence.gap_end = end;
    return {};
  }

  void cut(ModelSequence& sequence, std::int64_t length) {
    sequence.tokens.resize(static_cast<std::size_t>(length));
    if (length <= sequence.gap_begin) sequence.gap_begin = sequence.gap_end = 0;
  }

  // Some of the sequences, in some order, with 0 to 20 tokens each.
  Rows choose_rows(const Operation& operation) const {
    Rows rows;
    std::mt19937_64 random(operation.b);
    const std::size_t count = 1 + operation.a % std::min<std::size_t>(3, sequences_.size());
    const std::size_t first = operation.c % sequences_.size();
    for (std::size_t n = 0; n < count; ++n) {
      rows.model.push_back((first + n) % sequences_.size());
      const auto tokens = static_cast<std::int64_t>(random() % 3 ? 1 : random() % 21);
      rows.steps.push_back({.sequence = sequences_[rows.model.back()].id, .tokens = tokens});
      rows.total += tokens;
    }
    return rows;
  }

  // k or v of one token and head in the type of the call.
  double element(std::uint64_t token, bool is_value, std::int64_t head, std::int64_t d) const {
    const double x = value_of(mix(token * 2 + is_value) + static_cast<std::uint64_t>(head * 1000 + d));
    return with_floating_type(config_.q_dtype, [&](auto type) { return to_double(from_double<decltype(type)>(x)); });
  }

  std::string append(const Operation& operation) {
    const KvCacheConfig& c = cache_.config();
    Rows rows = choose_rows(operation);
    std::vector<std::uint64_t> tokens;
    Tensor k(config_.q_dtype, {1, c.kv_heads, rows.total, c.head_dim});
    Tensor v(config_.q_dtype, {1, c.kv_heads, rows.total, c.value_dim});
    for (std::int64_t i = 0; i < rows.total; ++i) {
      tokens.push_back(next_token_++);
      fill(k, i, [&](auto head, auto d) { return element(tokens.back(), false, head, d); });
      fill(v, i, [&](auto head, auto d) { return element(tokens.back(), true, head, d); });
    }
    const KvCacheUsage before = cache_.usage();
    try {
      Placement call(config_.memory);
      const ConstTensorView placed_k = call.input(k), placed_v = call.input(v);
      for (std::int64_t layer = 0; layer < c.layers; ++layer) {
        rootdk::append(cache_, placed_k, placed_v, rows.steps, {.layer = layer, .rope = rope()});
      }
      call.fetch();
    } catch (const Error& error) {
      return check_refusal(error, before);
    }
    std::size_t next = 0;
    for (std::size_t s = 0; s < rows.steps.size(); ++s) {
      for (std::int64_t i = 0; i < rows.steps[s].tokens; ++i) {
        sequences_[rows.model[s]].tokens.push_back(tokens[next++]);
      }
    }
    return check_lengths();
  }

  // The only refusal a valid append may meet is a cache without room, and it changes nothing.
  std::string check_refusal(const Error& error, const KvCacheUsage& before) const {
    const std::string message = error.what();
    if (message.find("the cache is full") == std::string::npos && message.find("do not fit") == std::string::npos) {
      return "append: " + message;
    }
    const KvCacheUsage after = cache_.usage();
    if (after.free_pages != before.free_pages || after.shared_pages != before.shared_pages) {
      return "a refused append changed the pages: " + message;
    }
    return check_lengths();
  }

  std::string check_lengths() const {
    for (const ModelSequence& sequence : sequences_) {
      for (std::int64_t layer = 0; layer < cache_.config().layers; ++layer) {
        if (cache_.length(sequence.id, layer) != sequence.length()) {
          return "length is " + std::to_string(cache_.length(sequence.id, layer)) + ", expected " +
                 std::to_string(sequence.length());
        }
      }
    }
    return {};
  }

  template <class Element>
  void fill(Tensor& tensor, std::int64_t row, Element element) const {
    with_floating_type(tensor.dtype(), [&](auto type) {
      const auto at = write<decltype(type), 4>(tensor.view());
      for (std::int64_t head = 0; head < tensor.size(1); ++head) {
        for (std::int64_t d = 0; d < tensor.size(3); ++d) {
          at(0, head, row, d) = from_double<decltype(type)>(element(head, d));
        }
      }
    });
  }

  std::optional<RopeParams> rope() const {
    if (!config_.rope) return {};
    return RopeParams{.layout = config_.seed % 2 ? RopeLayout::half_split : RopeLayout::interleaved,
                      .rotary_dim = cache_.config().head_dim / 4 * 2};
  }

  AttendParams random_params(std::mt19937_64& random) const {
    AttendParams params{
        .layer = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(cache_.config().layers)),
        .rope = rope()};
    if (random() % 3 == 0) params.logits.scale = 0.7;
    if (random() % 4 == 0) params.logits.temperature = 1.5;
    if (random() % 3 == 0) params.logits.softcap = 3.0;
    if (random() % 2 == 0) params.window_left = static_cast<std::int64_t>(random() % 40);
    if (random() % 2 == 0) params.window_keeps_first = static_cast<std::int64_t>(random() % 8);
    if (random() % 3 == 0) params.logits.alibi_slopes = slopes_;
    if (random() % 3 == 0) params.logits.sinks = sinks_;
    if (random() % 4 == 0) params.logits.relative_table = table_, params.logits.relative_zero = 3;
    return params;
  }

  std::string attend(const Operation& operation) {
    const KvCacheConfig& c = cache_.config();
    Rows rows = choose_rows(operation);
    std::mt19937_64 random(operation.b + 1);
    rows.total = 0;
    for (std::size_t s = 0; s < rows.steps.size(); ++s) {
      const ModelSequence& model = sequences_[rows.model[s]];
      KvStep& step = rows.steps[s];
      step.tokens = std::min(step.tokens, model.length() - model.gap_end);
      // Now and then queries that stand before the end.
      if (random() % 4 == 0) {
        const std::int64_t room = model.length() - model.gap_end - step.tokens;
        step.position = model.gap_end + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(room + 1));
      }
      rows.total += step.tokens;
    }
    const std::int64_t heads = c.kv_heads * config_.group;
    slopes_ = random_tensor(DType::f32, {heads}, 1, 0.1);
    sinks_ = random_tensor(DType::f32, {heads}, 2);
    table_ = random_tensor(DType::f32, {heads, 17}, 3);
    const AttendParams params = random_params(random);
    const Tensor q = random_tensor(config_.q_dtype, {1, heads, rows.total, c.head_dim}, operation.b);
    Tensor out(config_.q_dtype, {1, heads, rows.total, c.value_dim});
    poison(out);
    Tensor stats[5];
    for (Tensor& t : stats) t = Tensor(DType::f32, {1, heads, rows.total}), poison(t);
    run_attend(q, out, stats, rows.steps, params);
    std::int64_t row = 0;
    for (std::size_t s = 0; s < rows.steps.size(); ++s) {
      const std::int64_t end = row + rows.steps[s].tokens;
      if (row < end) {
        std::string wrong = compare(sequences_[rows.model[s]], rows.steps[s], params, q.view().slice(2, row, end),
                                    out.view().slice(2, row, end), stats, row);
        if (!wrong.empty()) return wrong;
      }
      row = end;
    }
    return {};
  }

  void run_attend(const Tensor& q, Tensor& out, Tensor (&stats)[5], std::span<const KvStep> steps,
                  AttendParams params) {
    Placement call(config_.memory);
    for (ConstTensorView* view : {&params.logits.relative_table, &params.logits.alibi_slopes, &params.logits.sinks})
      *view = call.input(*view);
    const ConstTensorView placed_q = call.input(q);
    const TensorView placed_out = call.output(out);
    const AttentionStats rows{.lse = call.output(stats[0]),
                              .max_logit = call.output(stats[1]),
                              .max_weight = call.output(stats[2]),
                              .entropy = call.output(stats[3]),
                              .sum_p2 = call.output(stats[4])};
    Execution execution{.target = config_.target};
    call.add_workspace(execution, attend_workspace(cache_, placed_q, placed_out, steps, params, rows, execution));
    rootdk::attend(cache_, placed_q, placed_out, steps, params, rows, execution);
    call.fetch();
  }

  // One causal pass over the model's tokens, in double, on the values that the cache's type can hold.
  std::string compare(const ModelSequence& model, const KvStep& step, const AttendParams& p, ConstTensorView q,
                      ConstTensorView out, const Tensor (&stats)[5], std::int64_t row) const {
    const KvCacheConfig& c = cache_.config();
    const std::int64_t position = step.position < 0 ? model.length() - step.tokens : step.position;
    const std::int64_t kv_len = position + step.tokens, heads = q.size(1);
    const Tensor k = held(model, kv_len, false), v = held(model, kv_len, true);
    Tensor keep(DType::boolean, {1, 1, step.tokens, kv_len});
    for (std::int64_t i = 0; i < step.tokens; ++i) {
      for (std::int64_t j = 0; j < kv_len; ++j) {
        const bool evicted = j >= model.gap_begin && j < model.gap_end;
        const bool hidden = p.window_left >= 0 && j < position + i - p.window_left && j >= p.window_keeps_first;
        keep.values<bool>()[static_cast<std::size_t>(i * kv_len + j)] = !evicted && !hidden;
      }
    }
    Tensor turned = clone(q);
    if (p.rope) {
      RopeParams there = *p.rope;
      there.offset += position;
      rootdk::rope(q, turned, there);
    }
    const Tensor wide_q = convert(turned, DType::f64);
    auto wide = [](const ConstTensorView& view) { return view.defined() ? convert(view, DType::f64) : Tensor(); };
    const Tensor slopes = wide(p.logits.alibi_slopes), sinks = wide(p.logits.sinks),
                 table = wide(p.logits.relative_table);
    Tensor expected(DType::f64, {1, heads, step.tokens, c.value_dim});
    Tensor expected_stats[5];
    for (Tensor& t : expected_stats) t = Tensor(DType::f64, {1, heads, step.tokens});
    attention(wide_q, k, v, expected,
              {.logits = {.scale = p.logits.scale,
                          .temperature = p.logits.temperature,
                          .softcap = p.logits.softcap,
                          .relative_table = table,
                          .relative_zero = p.logits.relative_zero,
                          .alibi_slopes = slopes,
                          .sinks = sinks},
               .causal = true,
               .mask = keep},
              {.lse = expected_stats[0],
               .max_logit = expected_stats[1],
               .max_weight = expected_stats[2],
               .entropy = expected_stats[3],
               .sum_p2 = expected_stats[4]},
              {.target = "reference"});
    std::string wrong = close_enough("out", expected, out, config_.tolerance);
    const char* names[] = {"lse", "max_logit", "max_weight", "entropy", "sum_p2"};
    for (std::size_t n = 0; n < 5 && wrong.empty(); ++n) {
      wrong = close_enough(names[n], expected_stats[n], stats[n].view().slice(2, row, row + step.tokens),
                           config_.tolerance);
    }
    return wrong;
  }

  static std::string close_enough(const char* name, const ConstTensorView& expected, const ConstTensorView& actual,
                                  double tolerance) {
    const Difference d = difference(expected, convert(actual, DType::f64));
    if (d.largest <= tolerance * std::max(1.0, d.magnitude)) return {};
    std::ostringstream text;
    text << name << " is " << d.largest << " away at element " << d.where << " of magnitude " << d.magnitude;
    return text.str();
  }

  // What the cache should hold of k or v: rotated, then rounded to its type. [1, kv_heads, kv_len, dim]
  Tensor held(const ModelSequence& model, std::int64_t kv_len, bool is_value) const {
    const KvCacheConfig& c = cache_.config();
    const std::int64_t dim = is_value ? c.value_dim : c.head_dim;
    Tensor x(DType::f64, {1, c.kv_heads, kv_len, dim});
    for (std::int64_t j = 0; j < kv_len; ++j) {
      fill(x, j,
           [&](auto head, auto d) { return element(model.tokens[static_cast<std::size_t>(j)], is_value, head, d); });
    }
    if (rope() && !is_value) rootdk::rope(x, x, *rope());
    if (!is_quantised(c.dtype)) return convert(convert(x, c.dtype), DType::f64);
    for (std::size_t row = 0; row < static_cast<std::size_t>(c.kv_heads * kv_len); ++row) {
      const auto values =
          x.values<double>().subspan(row * static_cast<std::size_t>(dim), static_cast<std::size_t>(dim));
      double largest = 0;
      for (const double value : values) largest = std::max(largest, std::fabs(value));
      const bool integers = c.dtype == DType::i8;
      const auto scale = static_cast<double>(static_cast<float>(largest / (integers ? 127 : 448)));
      for (double& value : values) {
        const double x = value / scale;
        value = scale * (integers ? std::nearbyint(x) : static_cast<float>(Float8E4M3(x)));
      }
    }
    return x;
  }

  WorldConfig config_;
  Placement storage_;
  KvCache cache_;
  std::vector<ModelSequence> sequences_;
  std::uint64_t next_token_ = 1;
  Tensor slopes_, sinks_, table_;
};

}  // namespace

std::string describe(const WorldConfig& config) {
  std::ostringstream text;
  const KvCacheConfig& c = config.cache;
  text << "seed " << config.seed << ", " << (c.layout == KvLayout::paged ? "paged" : "contiguous") << ' '
       << name_of(c.dtype) << ", layers " << c.layers << ", heads " << c.kv_heads * config.group << " / " << c.kv_heads
       << ", dims " << c.head_dim << " / " << c.value_dim << ", page_size " << c.page_size << ", pages " << c.pages
       << ", max_len " << c.max_len << ", q " << name_of(config.q_dtype) << ", rope " << config.rope << ", target "
       << config.target;
  return text.str();
}

std::string describe(const Operation& operation) {
  static const char* kNames[] = {"open", "append", "fork", "trim", "evict", "close", "attend"};
  std::ostringstream text;
  text << kNames[static_cast<std::size_t>(operation.kind)] << '(' << operation.a << ", " << operation.b << ", "
       << operation.c << ')';
  return text.str();
}

std::vector<Operation> random_schedule(std::uint64_t seed, int operations) {
  using Kind = Operation::Kind;
  static const Kind kKinds[] = {Kind::append, Kind::append, Kind::append, Kind::append, Kind::attend, Kind::attend,
                                Kind::attend, Kind::fork,   Kind::trim,   Kind::evict,  Kind::open,   Kind::close};
  std::mt19937_64 random(seed);
  std::vector<Operation> schedule = {{.kind = Kind::open}};
  for (int n = 0; n < operations; ++n) {
    auto number = [&] { return static_cast<std::uint32_t>(random() % 1000003); };
    schedule.push_back({kKinds[random() % std::size(kKinds)], number(), number(), number()});
  }
  schedule.push_back({Kind::attend, 0, static_cast<std::uint32_t>(seed % 1000), 0});
  return schedule;
}

std::string run_schedule(const WorldConfig& config, const std::vector<Operation>& schedule) {
  try {
    World world(config);
    for (const Operation& operation : schedule) {
      std::string wrong = world.apply(operation);
      if (!wrong.empty()) return describe(operation) + ": " + wrong;
    }
    return world.finish();
  } catch (const Error& error) {
    return std::string("threw: ") + error.what();
  }
}

std::string check_schedule(const WorldConfig& config, const std::vector<Operation>& schedule) {
  std::string wrong = run_schedule(config, schedule);
  if (wrong.empty()) return {};
  std::vector<Operation> shortest = schedule;
  for (std::size_t i = shortest.size(); i-- > 0;) {
    std::vector<Operation> shorter = shortest;
    shorter.erase(shorter.begin() + static_cast<std::ptrdiff_t>(i));
    const std::string still = run_schedule(config, shorter);
    if (!still.empty()) shortest = shorter, wrong = still;
  }
  std::ostringstream text;
  text << wrong << "\n  " << describe(config);
  for (const Operation& operation : shortest) text << "\n  " << describe(operation);
  return text.str();
}

}  // namespace rootdk::test
