// Heads exchanged (Ulysses): before, each rank sends its rows of some heads to the rank that computes these heads;
// after, the results go back the same way.

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

const std::vector<RowRange>& ranges_of(const Shares& shares, int rank) {
  return shares[static_cast<std::size_t>(rank)];
}

class HeadsCall {
 public:
  HeadsCall(Transport& transport, const Call& call)
      : transport_(transport),
        call_(call),
        shape_(call.whole.shape),
        own_(heads_of_rank(shape_, transport.rank(), transport.size())) {}

  // Rows of all ranks of the heads here, from the rows here of all heads.
  Tensor gather(const ConstTensorView& view, const Shares& shares, std::int64_t total, bool keys) {
    Exchange exchange(transport_, call_.distributed.timeout_seconds);
    const Range own = range(own_, keys);
    const int ranks = transport_.size();
    for (int r = 0; r < ranks; ++r) {
      const HeadShare other = heads_of_rank(shape_, r, ranks);
      exchange.bytes_to(r) = Exchange::bytes(view, range(other, keys), view.size(2));
      exchange.bytes_from(r) = Exchange::bytes(view, own, rows_of(shares, r));
    }
    exchange.begin_packing();
    for (int r = 0; r < ranks; ++r) {
      exchange.pack(view, range(heads_of_rank(shape_, r, ranks), keys), {0, view.size(2)});
    }
    exchange.run();
    Tensor all(view.dtype, {view.size(0), own.end - own.begin, total, view.size(3)});
    // A message goes head by head; the ranges of a share follow each other inside a head.
    for (int r = 0; r < ranks; ++r) {
      for (std::int64_t b = 0; b < view.size(0); ++b) {
        for (std::int64_t h = 0; h < own.end - own.begin; ++h) {
          for (const RowRange& rows : ranges_of(shares, r)) {
            exchange.unpack(all.view().slice(0, b, b + 1), {h, h + 1}, {rows.begin, rows.end});
          }
        }
      }
    }
    return all;
  }

  // The way back: rows here of all heads, from all rows of the heads here.
  void scatter(const ConstTensorView& all, const TensorView& view) {
    Exchange exchange(transport_, call_.distributed.timeout_seconds);
    const Shares& shares = call_.distributed.queries;
    const int ranks = transport_.size();
    const Range own{0, own_.end - own_.begin};
    for (int r = 0; r < ranks; ++r) {
      exchange.bytes_to(r) = Exchange::bytes(all, own, rows_of(shares, r));
      exchange.bytes_from(r) = Exchange::bytes(view, range(heads_of_rank(shape_, r, ranks), false), view.size(2));
    }
    exchange.begin_packing();
    for (int r = 0; r < ranks; ++r) {
      for (std::int64_t b = 0; b < all.size(0); ++b) {
        for (std::int64_t h = 0; h < own.end; ++h) {
          for (const RowRange& rows : ranges_of(shares, r)) {
            exchange.pack(all.slice(0, b, b + 1), {h, h + 1}, {rows.begin, rows.end});
          }
        }
      }
    }
    exchange.run();
    for (int r = 0; r < ranks; ++r) {
      exchange.unpack(view, range(heads_of_rank(shape_, r, ranks), false), {0, view.size(2)});
    }
  }

  void attend(const Tiles& tiles, const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
              const TensorView& out, const AttentionStats& stats, WeightMaps* maps) {
    const RowMap rows({{.begin = 0, .end = shape_.q_len}});
    RowsHere here{.q = q, .out = out, .stats = stats, .first_head = own_.begin, .maps = maps};
    here.blocks = local_runs(call_.whole, rows, Side::queries);
    ForwardRows forward(call_.whole, tiles, here, call_.executor());
    for (const Run& keys : call_.whole.key_chunks()) {
      const std::int64_t first = call_.whole.sequence_of(keys).kv_begin + keys.begin;
      forward.attend(keys, k.slice(2, first, first + keys.rows()), v.slice(2, first, first + keys.rows()),
                     own_.kv_begin);
    }
    forward.finish(call_.params.logits.sinks);
    if (maps) maps->finish(here.blocks, stats.lse, call_.executor());
  }

  std::int64_t heads() const { return own_.end - own_.begin; }
  std::int64_t first_head() const { return own_.begin; }

 private:
  static Range range(const HeadShare& share, bool keys) {
    return keys ? Range{share.kv_begin, share.kv_end} : Range{share.begin, share.end};
  }

  Transport& transport_;
  const Call& call_;
  const AttentionShape& shape_;
  HeadShare own_;
};

}  // namespace

void attend_heads(Transport& transport, const Call& call, const Tiles& tiles, const ConstTensorView& q,
                  const ConstTensorView& k, const ConstTensorView& v, const TensorView& out,
                  const AttentionStats& stats) {
  const AttentionShape& s = call.whole.shape;
  HeadsCall exchanged(transport, call);
  const Tensor all_q = exchanged.gather(q, call.distributed.queries, s.q_len, false);
  const Tensor all_k = exchanged.gather(k, call.distributed.keys, s.kv_len, true);
  const Tensor all_v = exchanged.gather(v, call.distributed.keys, s.kv_len, true);
  Tensor all_out(q.dtype, {s.batch, exchanged.heads(), s.q_len, s.value_dim});

  const std::vector<TensorView AttentionStats::*> rows = {&AttentionStats::lse, &AttentionStats::max_logit,
                                                          &AttentionStats::max_weight, &AttentionStats::entropy,
                                                          &AttentionStats::sum_p2};
  AttentionStats all_stats;
  std::vector<Tensor> memory;
  memory.reserve(rows.size());
  for (const auto field : rows) {
    if (!(stats.*field).defined()) continue;
    memory.emplace_back((stats.*field).dtype, std::initializer_list<std::int64_t>{s.batch, exchanged.heads(), s.q_len});
    all_stats.*field = memory.back();
  }
  std::optional<WeightMaps> maps;
  if (stats.pooled_map.defined())
    maps.emplace(call.whole, tiles, all_q, exchanged.first_head(), stats, ConstTensorView());
  if (exchanged.heads() > 0) {
    exchanged.attend(tiles, all_q, all_k, all_v, all_out, all_stats, maps ? &*maps : nullptr);
  }
  if (maps) maps->share(transport, call.distributed.timeout_seconds);
  exchanged.scatter(all_out, out);
  std::size_t next = 0;
  for (const auto field : rows) {
    if (!(stats.*field).defined()) continue;
    exchanged.scatter(with_width(memory[next++].view()), with_width(stats.*field));
  }
}

}  // namespace rootdk::distributed
