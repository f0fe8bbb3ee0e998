#include "rootdk/distributed.h"

#include <string>
#include <vector>

#include "c_api/convert.h"
#include "c_api/status.h"
#include "c_api/struct_version.h"
#include "rootdk/distributed_c_api.h"

namespace rootdk::c_api {
namespace {

// The caller's functions as a transport.
class CallerTransport final : public Transport {
 public:
  explicit CallerTransport(const rootdk_transport* given)
      : functions_(read_struct(&result(given, "transport"), empty(), "rootdk_transport")) {
    require(functions_.size >= 1 && functions_.rank >= 0 && functions_.rank < functions_.size,
            "c_api: the transport has rank ", functions_.rank, " of ", functions_.size);
    require(functions_.post_send && functions_.post_receive && functions_.wait,
            "c_api: the transport lacks post_send, post_receive or wait");
  }

  int rank() const override { return functions_.rank; }
  int size() const override { return functions_.size; }
  Transfer post_send(int to, const void* data, std::size_t bytes) override {
    const Transfer transfer = functions_.post_send(functions_.user, to, data, bytes);
    if (transfer == 0) give_up("send", bytes, to);
    return transfer;
  }
  Transfer post_receive(int from, void* data, std::size_t bytes) override {
    const Transfer transfer = functions_.post_receive(functions_.user, from, data, bytes);
    if (transfer == 0) give_up("receive", bytes, from);
    return transfer;
  }
  void wait(Transfer transfer, double timeout_seconds) override {
    if (functions_.wait(functions_.user, transfer, timeout_seconds) == 0) return;
    fail(ErrorKind::device, "rank ", rank(), ": a transfer failed or did not end within ", timeout_seconds, " seconds",
         reason());
  }
  bool progress() override {
    if (functions_.progress) functions_.progress(functions_.user);
    return functions_.progress != nullptr;
  }
  bool takes_device_memory(Device device) const override {
    return functions_.exchange_on_device && device.kind == DeviceKind::cuda;
  }
  void exchange_on_device(std::span<const DeviceMessage> send, std::span<const DeviceMessage> receive, void* stream,
                          double timeout_seconds) override {
    const auto sent = messages(send), received = messages(receive);
    if (functions_.exchange_on_device(functions_.user, sent.data(), sent.size(), received.data(), received.size(),
                                      stream, timeout_seconds) == 0) {
      return;
    }
    fail(ErrorKind::device, "rank ", rank(), ": ", sent.size(), " messages from the device and ", received.size(),
         " to it failed or did not end within ", timeout_seconds, " seconds", reason());
  }

 private:
  static rootdk_transport empty() {
    rootdk_transport none{};
    none.struct_size = sizeof none;
    return none;
  }
  static std::vector<rootdk_device_message> messages(std::span<const DeviceMessage> given) {
    std::vector<rootdk_device_message> all;
    for (const DeviceMessage& message : given) all.push_back({message.peer, message.data, message.bytes});
    return all;
  }
  [[noreturn]] void give_up(const char* what, std::size_t bytes, int peer) const {
    fail(ErrorKind::device, "rank ", rank(), ": ", what, " of ", bytes, " bytes, rank ", peer, reason());
  }
  std::string reason() const {
    const char* text = functions_.last_failure ? functions_.last_failure(functions_.user) : nullptr;
    return text && *text ? std::string(": ") + text : std::string();
  }

  rootdk_transport functions_;
};

rootdk_distributed_params distributed_defaults() {
  const DistributedParams values;
  rootdk_distributed_params params{};
  params.struct_size = sizeof params;
  params.scheme = static_cast<int32_t>(values.scheme);
  params.key_chunk = values.key_chunk;
  params.query_block = values.query_block;
  params.buffers = values.buffers;
  params.timeout_seconds = values.timeout_seconds;
  params.flops = values.rates.flops;
  params.link_bytes = values.rates.link_bytes;
  params.link_latency = values.rates.link_latency;
  params.memory_bytes = values.rates.memory_bytes;
  return params;
}

Shares convert_shares(const int64_t* counts, const rootdk_row_range* ranges, int ranks, const char* name) {
  Shares shares(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    require(counts[r] >= 0, "c_api: ", name, "[", r, "] is ", counts[r]);
    require(counts[r] == 0 || ranges, "c_api: the ranges of ", name, " are null");
    for (int64_t i = 0; i < counts[r]; ++i, ++ranges) {
      shares[static_cast<std::size_t>(r)].push_back({.begin = ranges->begin, .end = ranges->end});
    }
  }
  return shares;
}

DistributedParams convert(const rootdk_distributed_params* given, int ranks) {
  const rootdk_distributed_params p =
      read_struct(&result(given, "distributed"), distributed_defaults(), "rootdk_distributed_params");
  DistributedParams params;
  require(p.query_counts, "c_api: query_counts is null");
  params.queries = convert_shares(p.query_counts, p.query_ranges, ranks, "query_counts");
  if (p.key_counts) params.keys = convert_shares(p.key_counts, p.key_ranges, ranks, "key_counts");
  params.scheme = static_cast<Scheme>(p.scheme);
  params.key_chunk = p.key_chunk;
  params.query_block = p.query_block;
  params.buffers = p.buffers;
  require(p.head_ranks >= 0 && p.head_ranks <= ranks, "c_api: head_ranks ", p.head_ranks, " of ", ranks, " ranks");
  params.head_ranks = static_cast<int>(p.head_ranks);
  params.timeout_seconds = p.timeout_seconds;
  params.rates = {
      .flops = p.flops, .link_bytes = p.link_bytes, .link_latency = p.link_latency, .memory_bytes = p.memory_bytes};
  return params;
}

Shares make_shares(int32_t layout, int64_t total, const rootdk_tensor* starts, bool causal, int ranks) {
  switch (layout) {
    case 0: return contiguous_shares(total, ranks);
    case 1: return zigzag_shares(total, ranks);
    case 2: return document_shares(view(starts), ranks, causal);
    case 3: return striped_shares(total, ranks);
    default: fail("shares: layout ", layout, " is none of contiguous (0), zigzag (1), documents (2), striped (3)");
  }
}

}  // namespace
}  // namespace rootdk::c_api

using namespace rootdk::c_api;

rootdk_status rootdk_transport_init(rootdk_transport* transport, size_t struct_size) {
  return guarded([&] {
    rootdk_transport none{};
    none.struct_size = sizeof none;
    require_struct_size<rootdk_transport>(struct_size, "rootdk_transport");
    write_struct(&result(transport, "transport"), struct_size, none);
  });
}

rootdk_status rootdk_distributed_params_init(rootdk_distributed_params* params, size_t struct_size) {
  return guarded([&] {
    require_struct_size<rootdk_distributed_params>(struct_size, "rootdk_distributed_params");
    write_struct(&result(params, "params"), struct_size, distributed_defaults());
  });
}

rootdk_status rootdk_shares(int32_t layout, int64_t total, const rootdk_tensor* starts, int32_t causal, int32_t ranks,
                            int64_t* counts, rootdk_row_range* ranges, size_t room, size_t* needed) {
  return guarded([&] {
    const rootdk::Shares shares = make_shares(layout, total, starts, causal != 0, ranks);
    std::size_t all = 0;
    for (const auto& share : shares) all += share.size();
    result(needed, "needed") = all;
    for (std::size_t r = 0; r < shares.size(); ++r) {
      (&result(counts, "counts"))[r] = static_cast<int64_t>(shares[r].size());
    }
    if (all > room) return;
    std::size_t next = 0;
    for (const auto& share : shares) {
      for (const rootdk::RowRange& range : share) (&result(ranges, "ranges"))[next++] = {range.begin, range.end};
    }
  });
}

rootdk_status rootdk_distributed_attention(const rootdk_transport* transport, const rootdk_tensor* q,
                                           const rootdk_tensor* k, const rootdk_tensor* v, const rootdk_tensor* out,
                                           const rootdk_distributed_params* distributed,
                                           const rootdk_attention_params* params, const rootdk_attention_stats* stats,
                                           const rootdk_execution* execution) {
  return guarded([&] {
    CallerTransport ranks(transport);
    const ConvertedExecution where(execution);
    rootdk::distributed_attention(ranks, view(q), view(k), view(v), view(out), convert(distributed, ranks.size()),
                                  convert(params, stats), convert(stats), where);
  });
}

rootdk_status rootdk_distributed_attention_backward(
    const rootdk_transport* transport, const rootdk_attention_saved* saved, const rootdk_attention_upstream* upstream,
    const rootdk_attention_gradients* gradients, const rootdk_distributed_params* distributed,
    const rootdk_attention_params* params, const rootdk_execution* execution) {
  return guarded([&] {
    CallerTransport ranks(transport);
    const ConvertedExecution where(execution);
    rootdk::distributed_attention_backward(ranks, convert(saved), convert(upstream), convert(gradients),
                                           convert(distributed, ranks.size()), convert(params), where);
  });
}

rootdk_status rootdk_merge_over_ranks(const rootdk_transport* transport, const rootdk_tensor* out,
                                      const rootdk_tensor* lse, double timeout_seconds) {
  return guarded([&] {
    CallerTransport ranks(transport);
    rootdk::merge_over_ranks(ranks, view(out), view(lse), timeout_seconds);
  });
}
