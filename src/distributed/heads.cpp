// Heads exchanged (Ulysses): before, each rank sends its rows of some heads to the rank of its group that computes
// these heads; after, the results go back the same way. Between, chunks of keys pass from group to group; scheme heads
// has one group, and none pass.

#include <cstring>
#include <optional>

#include "distributed/call.h"

namespace rootdk::distributed {
namespace {

// Query heads of the whole that a rank computes, and the key heads that they attend to.
struct HeadShare {
  std::int64_t begin = 0, end = 0, kv_begin = 0, kv_end = 0;
};

HeadShare heads_of_rank(const AttentionShape& shape, int rank, int ranks) {
  HeadShare share{.begin = rank * shape.heads / ranks, .end = (rank + 1) * shape.heads / ranks};
  if (share.begin == share.end) return share;
  share.kv_begin = share.begin / shape.group();
  share.kv_end = (share.end - 1) / shape.group() + 1;
  return share;
}

// A row tensor [batch, heads, rows] as one of rank 4.
TensorView with_width(TensorView view) {
  view.shape[3] = view.strides[3] = 1;
  view.rank = 4;
  return view;
}

template <class View>
auto* row_at(const View& view, std::int64_t b, std::int64_t h, std::int64_t i) {
  const std::int64_t at = b * view.stride(0) + h * view.stride(1) + i * view.stride(2);
  return view.template as<std::byte>() + at * static_cast<std::int64_t>(size_of(view.dtype));
}

std::size_t width_bytes(const ConstTensorView& view) {
  return static_cast<std::size_t>(view.size(3)) * size_of(view.dtype);
}

struct Range {
  std::int64_t begin = 0, end = 0;
};

// Messages of an all-to-all as they are packed and unpacked: rows of some heads of a tensor, heads first.
class Exchange {
 public:
  Exchange(Transport& transport, double timeout_seconds)
      : transport_(transport),
        timeout_seconds_(timeout_seconds),
        send_bytes_(static_cast<std::size_t>(transport.size())),
        receive_bytes_(send_bytes_) {}

  std::size_t& bytes_to(int rank) { return send_bytes_[static_cast<std::size_t>(rank)]; }
  std::size_t& bytes_from(int rank) { return receive_bytes_[static_cast<std::size_t>(rank)]; }
  static std::size_t bytes(const ConstTensorView& view, Range heads, std::int64_t rows) {
    return static_cast<std::size_t>(view.size(0) * (heads.end - heads.begin) * rows) * width_bytes(view);
  }

  // The sizes are known: memory for both sides.
  void begin_packing() {
    send_.reserve(total(send_bytes_));
    receive_.resize(total(receive_bytes_));
  }
  void pack(const ConstTensorView& view, Range heads, Range rows) {
    const std::size_t width = width_bytes(view);
    for (std::int64_t b = 0; b < view.size(0); ++b) {
      for (std::int64_t h = heads.begin; h < heads.end; ++h) {
        for (std::int64_t i = rows.begin; i < rows.end; ++i) {
          const std::byte* row = row_at(view, b, h, i);
          send_.insert(send_.end(), row, row + width);
        }
      }
    }
  }
  void run() {
    transport_.all_to_all(send_.data(), send_bytes_, receive_.data(), receive_bytes_, timeout_seconds_);
    send_ = {};
  }
  void unpack(const TensorView& view, Range heads, Range rows) {
    const std::size_t width = width_bytes(view);
    for (std::int64_t b = 0; b < view.size(0); ++b) {
      for (std::int64_t h = heads.begin; h < heads.end; ++h) {
        for (std::int64_t i = rows.begin; i < rows.end; ++i, read_ += width) {
          std::memcpy(row_at(view, b, h, i), receive_.data() + read_, width);
        }
      }
    }
  }

 private:
  static std::size_t total(const std::vector<std::size_t>& bytes) {
    std::size_t sum = 0;
    for (const std::size_t one : bytes) sum += one;
    return sum;
  }

  Transport& transport_;
  double timeout_seconds_;
  std::vector<std::size_t> send_bytes_, receive_bytes_;
  std::vector<std::byte> send_, receive_;
  std::size_t read_ = 0;
};

// Some ranks of a transport as one of their own.
class Subgroup : public Transport {
 public:
  Subgroup(Transport& whole, std::vector<int> ranks, int rank) : whole_(whole), ranks_(std::move(ranks)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  Transfer post_send(int to, const void* data, std::size_t bytes) override {
    return whole_.post_send(ranks_[static_cast<std::size_t>(to)], data, bytes);
  }
  Transfer post_receive(int from, void* data, std::size_t bytes) override {
    return whole_.post_receive(ranks_[static_cast<std::size_t>(from)], data, bytes);
  }
  void wait(Transfer transfer, double timeout_seconds) override { whole_.wait(transfer, timeout_seconds); }
  bool progress() override { return whole_.progress(); }

 private:
  Transport& whole_;
  std::vector<int> ranks_;
  int rank_;
};

// Ranks first, first + step, ... of the whole.
Subgroup subgroup(Transport& whole, int first, int step, int count) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(first + i * step);
  return {whole, std::move(ranks), (whole.rank() - first) / step};
}

// Heads exchanged among the ranks of one group: each has all rows of the group of some heads.
class HeadExchange {
 public:
  HeadExchange(Transport& group, const Call& call, int first_rank)
      : group_(group),
        call_(call),
        shape_(call.whole.shape),
        first_rank_(first_rank),
        own_(heads_of_rank(shape_, group.rank(), group.size())) {}

  const HeadShare& own() const { return own_; }
  std::int64_t heads() const { return own_.end - own_.begin; }

  // Rows of the group of the heads here, from the rows here of all heads.
  Tensor gather(const ConstTensorView& view, const Shares& shares, bool keys) {
    Exchange exchange(group_, call_.distributed.timeout_seconds);
    const Range own = range(own_, keys);
    std::int64_t total = 0;
    for (int r = 0; r < group_.size(); ++r) {
      exchange.bytes_to(r) = Exchange::bytes(view, range(share_of(r), keys), view.size(2));
      exchange.bytes_from(r) = Exchange::bytes(view, own, rows(shares, r));
      total += rows(shares, r);
    }
    exchange.begin_packing();
    for (int r = 0; r < group_.size(); ++r) exchange.pack(view, range(share_of(r), keys), {0, view.size(2)});
    exchange.run();
    Tensor all(view.dtype, {view.size(0), own.end - own.begin, total, view.size(3)});
    std::int64_t first = 0;
    for (int r = 0; r < group_.size(); ++r) {
      exchange.unpack(all.view(), {0, own.end - own.begin}, {first, first + rows(shares, r)});
      first += rows(shares, r);
    }
    return all;
  }

  // The way back: rows here of all heads, from the rows of the group of the heads here.
  void scatter(const ConstTensorView& all, const TensorView& view) {
    Exchange exchange(group_, call_.distributed.timeout_seconds);
    const Shares& shares = call_.distributed.queries;
    const Range own{0, heads()};
    for (int r = 0; r < group_.size(); ++r) {
      exchange.bytes_to(r) = Exchange::bytes(all, own, rows(shares, r));
      exchange.bytes_from(r) = Exchange::bytes(view, range(share_of(r), false), view.size(2));
    }
    exchange.begin_packing();
    std::int64_t first = 0;
    for (int r = 0; r < group_.size(); ++r) {
      exchange.pack(all, own, {first, first + rows(shares, r)});
      first += rows(shares, r);
    }
    exchange.run();
    for (int r = 0; r < group_.size(); ++r) exchange.unpack(view, range(share_of(r), false), {0, view.size(2)});
  }

 private:
  HeadShare share_of(int member) const { return heads_of_rank(shape_, member, group_.size()); }
  std::int64_t rows(const Shares& shares, int member) const { return rows_of(shares, first_rank_ + member); }
  static Range range(const HeadShare& share, bool keys) {
    return keys ? Range{share.kv_begin, share.kv_end} : Range{share.begin, share.end};
  }

  Transport& group_;
  const Call& call_;
  const AttentionShape& shape_;
  int first_rank_;
  HeadShare own_;
};

}  // namespace

void attend_heads(Transport& transport, const Call& call, const Tiles& tiles, const ConstTensorView& q,
                  const ConstTensorView& k, const ConstTensorView& v, const TensorView& out,
                  const AttentionStats& stats) {
  const AttentionShape& s = call.whole.shape;
  const int size = call.distributed.scheme == Scheme::heads ? transport.size() : call.distributed.head_ranks;
  const int first = transport.rank() / size * size, member = transport.rank() - first;
  Subgroup group = subgroup(transport, first, 1, size);
  Subgroup across = subgroup(transport, member, size, transport.size() / size);
  HeadExchange heads(group, call, first);
  const Tensor all_q = heads.gather(q, call.distributed.queries, false);
  const Tensor all_k = heads.gather(k, call.distributed.keys, true);
  const Tensor all_v = heads.gather(v, call.distributed.keys, true);
  Tensor all_out(q.dtype, {s.batch, heads.heads(), all_q.size(2), s.value_dim});

  const std::vector<TensorView AttentionStats::*> fields = {&AttentionStats::lse, &AttentionStats::max_logit,
                                                            &AttentionStats::max_weight, &AttentionStats::entropy,
                                                            &AttentionStats::sum_p2};
  AttentionStats all_stats;
  std::vector<Tensor> memory;
  memory.reserve(fields.size());
  for (const auto field : fields) {
    if (!(stats.*field).defined()) continue;
    memory.emplace_back((stats.*field).dtype,
                        std::initializer_list<std::int64_t>{s.batch, heads.heads(), all_q.size(2)});
    all_stats.*field = memory.back();
  }
  std::optional<WeightMaps> maps;
  if (stats.pooled_map.defined()) maps.emplace(call.whole, tiles, all_q, heads.own().begin, stats, ConstTensorView());
  if (heads.heads() > 0) {
    Call groups = call;
    groups.distributed.queries = group_shares(call.distributed.queries, size);
    groups.distributed.keys = group_shares(call.distributed.keys, size);
    attend_stream(across, groups, tiles,
                  {.q = all_q,
                   .out = all_out,
                   .stats = all_stats,
                   .first_head = heads.own().begin,
                   .maps = maps ? &*maps : nullptr},
                  {.k = all_k, .v = all_v, .first_head = heads.own().kv_begin});
  }
  if (maps) maps->share(transport, call.distributed.timeout_seconds);
  heads.scatter(all_out, out);
  std::size_t next = 0;
  for (const auto field : fields) {
    if (!(stats.*field).defined()) continue;
    heads.scatter(with_width(memory[next++].view()), with_width(stats.*field));
  }
}

}  // namespace rootdk::distributed
