#include "distributed/agreement.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <sstream>

#include "core/check.h"

namespace rootdk::distributed {
namespace {

// What one rank says, as it travels.
struct Statement {
  static constexpr std::size_t kEntries = 64, kText = 512, kName = 24;
  struct Entry {
    char name[kName];
    std::int64_t bits;
    EntryKind kind;
  };

  std::int64_t kind;  // of its error; -1: none
  std::int64_t count;
  Entry entries[kEntries];
  char text[kText];
};

constexpr std::uint64_t kHashStart = 1469598103934665603u;

std::uint64_t hash(std::uint64_t so_far, const void* data, std::size_t bytes) {
  const auto* byte = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; ++i) so_far = (so_far ^ byte[i]) * 1099511628211u;
  return so_far;
}

// Elements in order, from dimension `d` on.
std::uint64_t hash_elements(std::uint64_t so_far, const ConstTensorView& values, int d, std::int64_t at) {
  const auto element = static_cast<std::int64_t>(size_of(values.dtype));
  if (d == values.rank) {
    return hash(so_far, static_cast<const std::byte*>(values.data) + at * element, static_cast<std::size_t>(element));
  }
  for (std::int64_t i = 0; i < values.size(d); ++i) {
    so_far = hash_elements(so_far, values, d + 1, at + i * values.stride(d));
  }
  return hash(so_far, &values.shape[static_cast<std::size_t>(d)], sizeof values.shape[0]);
}

// The sizes that a mask or a bias has on every rank: all but its rows.
void add_row_tensor(Request& request, const std::string& name, const ConstTensorView& view) {
  request.add(name + " given", static_cast<std::int64_t>(view.defined()));
  request.add(name + " dtype", view.defined() ? view.dtype : DType::f32);
  request.add(name + " batch", view.defined() ? view.size(0) : 0);
  request.add(name + " heads", view.defined() ? view.size(1) : 0);
  request.add(name + " keys", view.defined() ? view.size(3) : 0);
}

void copy_text(char* to, std::size_t room, std::string_view text) {
  const std::size_t length = std::min(room - 1, text.size());
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

Statement statement_of(const Request& request) {
  Statement statement{};
  statement.kind = -1;
  require(request.entries().size() <= Statement::kEntries, ErrorKind::internal, "agreement: ", request.entries().size(),
          " entries are more than ", Statement::kEntries);
  for (const Request::Entry& entry : request.entries()) {
    Statement::Entry& to = statement.entries[statement.count++];
    copy_text(to.name, Statement::kName, entry.name);
    to.bits = entry.bits;
    to.kind = entry.kind;
  }
  return statement;
}

std::string value_of(const Statement::Entry& entry) {
  std::ostringstream text;
  switch (entry.kind) {
    case EntryKind::real: text << std::bit_cast<double>(entry.bits); break;
    case EntryKind::dtype: text << name_of(static_cast<DType>(entry.bits)); break;
    case EntryKind::scheme: text << name_of(static_cast<Scheme>(entry.bits)); break;
    case EntryKind::contents: text << (entry.bits == 0 ? "not given" : "given"); break;
    case EntryKind::whole: text << entry.bits; break;
  }
  return text.str();
}

void compare(std::string_view operation, const Statement& a, int rank_a, const Statement& b, int rank_b) {
  for (std::int64_t i = 0; i < std::max(a.count, b.count); ++i) {
    const Statement::Entry &x = a.entries[i], &y = b.entries[i];
    require(std::strcmp(x.name, y.name) == 0, operation, ": rank ", rank_a, " and rank ", rank_b,
            " make different calls (", x.name, ", ", y.name, ")");
    const bool hidden = x.kind == EntryKind::contents && x.bits != 0 && y.bits != 0;  // hashes say nothing to a reader
    require(x.bits == y.bits || !hidden, operation, ": ", x.name, " on rank ", rank_a, " and on rank ", rank_b,
            " are not the same");
    require(x.bits == y.bits, operation, ": ", x.name, " is ", value_of(x), " on rank ", rank_a, " but ", value_of(y),
            " on rank ", rank_b);
  }
}

}  // namespace

void Request::add(std::string_view name, std::int64_t value) {
  entries_.push_back({.name = std::string(name), .bits = value, .kind = EntryKind::whole});
}

void Request::add(std::string_view name, double value) {
  entries_.push_back({.name = std::string(name), .bits = std::bit_cast<std::int64_t>(value), .kind = EntryKind::real});
}

void Request::add(std::string_view name, DType dtype) {
  entries_.push_back({.name = std::string(name), .bits = static_cast<std::int64_t>(dtype), .kind = EntryKind::dtype});
}

void Request::add(std::string_view name, Scheme scheme) {
  entries_.push_back({.name = std::string(name), .bits = static_cast<std::int64_t>(scheme), .kind = EntryKind::scheme});
}

void Request::add(std::string_view name, const Shares& shares) {
  std::uint64_t sum = kHashStart;
  for (const auto& share : shares) {
    sum = hash(sum, share.data(), share.size() * sizeof(RowRange));
    const std::size_t count = share.size();
    sum = hash(sum, &count, sizeof count);
  }
  add_contents(name, static_cast<std::int64_t>(sum));
}

void Request::add(std::string_view name, const ConstTensorView& values) {
  if (!values.defined()) return add_contents(name, 0);
  if (values.device.kind != DeviceKind::cpu) return add_contents(name, values.elements());  // the host cannot look
  add_contents(name, static_cast<std::int64_t>(hash_elements(kHashStart, values, 0, 0)));
}

void Request::add_contents(std::string_view name, std::int64_t hash) {
  entries_.push_back({.name = std::string(name), .bits = hash, .kind = EntryKind::contents});
}

void agree(std::string_view operation, Transport& transport, double timeout_seconds,
           const std::function<void(Request&)>& check) {
  Statement own{};
  try {
    Request request;
    check(request);
    own = statement_of(request);
  } catch (const Error& error) {
    own = {};
    own.kind = static_cast<std::int64_t>(error.kind());
    copy_text(own.text, Statement::kText, error.what());
  }
  const auto ranks = static_cast<std::size_t>(transport.size());
  if (ranks > 1) {
    const std::vector<Statement> sent(ranks, own);
    std::vector<Statement> all(ranks);
    const std::vector<std::size_t> bytes(ranks, sizeof(Statement));
    transport.all_to_all(sent.data(), bytes, all.data(), bytes, timeout_seconds > 0 ? timeout_seconds : 300);
    if (own.kind < 0) {
      for (std::size_t r = 0; r < ranks; ++r) {
        require(all[r].kind < 0, static_cast<ErrorKind>(all[r].kind), "rank ", r, ": ", all[r].text);
      }
      for (std::size_t r = 1; r < ranks; ++r) compare(operation, all[0], 0, all[r], static_cast<int>(r));
    }
  }
  if (own.kind >= 0) fail(static_cast<ErrorKind>(own.kind), own.text);
}

void add_whole(Request& request, const Whole& whole, const DistributedParams& distributed,
               const AttentionParams& params, DType dtype) {
  const AttentionShape& s = whole.shape;
  request.add("dtype", dtype);
  request.add("batch", s.batch);
  request.add("heads", s.heads);
  request.add("kv_heads", s.kv_heads);
  request.add("head_dim", s.head_dim);
  request.add("value_dim", s.value_dim);
  request.add("q_len", s.q_len);
  request.add("kv_len", s.kv_len);
  request.add("key_chunk", distributed.key_chunk);
  request.add("query_block", distributed.query_block);
  request.add("shares of queries", distributed.queries);
  request.add("shares of keys", distributed.keys);
  request.add("score", static_cast<std::int64_t>(params.score));
  request.add("scale", params.logits.scale.factor(s.head_dim));
  request.add("temperature", params.logits.temperature);
  request.add("softcap", params.logits.softcap);
  request.add("relative_zero", params.logits.relative_zero);
  request.add("relative_table", params.logits.relative_table);
  request.add("alibi_slopes", params.logits.alibi_slopes);
  request.add("sinks", params.logits.sinks);
  request.add("additive_v", params.additive_v);
  request.add("causal", static_cast<std::int64_t>(params.causal));
  request.add("window_left", params.window_left);
  request.add("window_right", params.window_right);
  request.add("kv_lengths", params.kv_lengths);
  request.add("q_starts", params.q_starts);
  request.add("kv_starts", params.kv_starts);
  request.add("dropout", params.dropout);
  request.add("seed", static_cast<std::int64_t>(params.seed));
  request.add("block_mask", params.block_mask);
  request.add("block_q", params.block_q);
  request.add("block_kv", params.block_kv);
  add_row_tensor(request, "mask", params.mask);
  add_row_tensor(request, "bias", params.bias);
  // Last: where nothing is said of them, they follow from the rest.
  request.add("scheme", distributed.scheme);
  request.add("head_ranks", static_cast<std::int64_t>(distributed.head_ranks));
}

}  // namespace rootdk::distributed
