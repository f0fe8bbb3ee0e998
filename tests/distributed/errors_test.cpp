// What goes wrong on one rank is an error on every rank, with the values, in time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "distributed/ranks.h"
#include "rootdk/error.h"

namespace rootdk::test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

struct Local {
  Tensor q, k, v, out;

  explicit Local(std::int64_t rows, std::int64_t head_dim = 8)
      : q(DType::f32, {1, 2, rows, head_dim}),
        k(DType::f32, {1, 2, rows, head_dim}),
        v(DType::f32, {1, 2, rows, 8}),
        out(DType::f32, {1, 2, rows, 8}) {}
};

DistributedParams params_for(int ranks, std::int64_t total) {
  return {.queries = contiguous_shares(total, ranks), .scheme = Scheme::ring, .key_chunk = 16, .timeout_seconds = 30};
}

TEST(DistributedErrors, ShapesThatDiffer) {
  const auto errors = errors_of_ranks(3, [](Transport& transport) {
    Local here(20, transport.rank() == 2 ? 16 : 8);
    distributed_attention(transport, here.q, here.k, here.v, here.out, params_for(3, 60));
  });
  EXPECT_THAT(errors, Each(HasSubstr("head_dim is 8 on rank 0 but 16 on rank 2")));
}

TEST(DistributedErrors, ParametersThatDiffer) {
  const auto errors = errors_of_ranks(2, [](Transport& transport) {
    Local here(20);
    distributed_attention(transport, here.q, here.k, here.v, here.out, params_for(2, 40),
                          {.dropout = transport.rank() ? 0.25 : 0.5});
  });
  EXPECT_THAT(errors, Each(HasSubstr("dropout is 0.5 on rank 0 but 0.25 on rank 1")));
}

// The names of types and schemes, not their numbers; and what was asked for, not the scheme that follows from it.
TEST(DistributedErrors, NamesWhatDiffers) {
  const auto errors = [](const auto& call) {
    return errors_of_ranks(2, [&](Transport& transport) {
      DistributedParams params = params_for(2, 40);
      params.scheme = Scheme::automatic;
      call(transport, transport.rank() == 1, params);
    });
  };
  EXPECT_THAT(errors([](Transport& transport, bool second, DistributedParams& params) {
                Local here(20);
                if (second) params.scheme = Scheme::ring;
                if (!second) params.scheme = Scheme::gather;
                distributed_attention(transport, here.q, here.k, here.v, here.out, params);
              }),
              Each(HasSubstr("scheme is gather on rank 0 but ring on rank 1")));
  EXPECT_THAT(errors([](Transport& transport, bool second, DistributedParams& params) {
                const DType dtype = second ? DType::bf16 : DType::f32;
                Tensor q(dtype, {1, 2, 20, 8}), out(dtype, {1, 2, 20, 8});
                distributed_attention(transport, q, q, q, out, params);
              }),
              Each(HasSubstr("dtype is f32 on rank 0 but bf16 on rank 1")));
  EXPECT_THAT(errors([](Transport& transport, bool second, DistributedParams& params) {
                Local here(20);
                params.rates.memory_bytes = second ? 1e9 : 1;  // may choose another scheme
                distributed_attention(transport, here.q, here.k, here.v, here.out, params, {.causal = second});
              }),
              Each(HasSubstr("causal is 0 on rank 0 but 1 on rank 1")));
  EXPECT_THAT(errors([](Transport& transport, bool second, DistributedParams& params) {
                Local here(20);
                Tensor sinks(DType::f32, {2});
                sinks.values<float>()[0] = second ? 1.0f : 0.0f;
                AttentionParams attention;
                attention.logits.sinks = sinks;
                distributed_attention(transport, here.q, here.k, here.v, here.out, params, attention);
              }),
              Each(HasSubstr("sinks on rank 0 and on rank 1 are not the same")));
  EXPECT_THAT(errors([](Transport& transport, bool second, DistributedParams& params) {
                Local here(20);
                const Tensor sinks(DType::f32, {2});
                AttentionParams attention;
                if (second) attention.logits.sinks = sinks;
                distributed_attention(transport, here.q, here.k, here.v, here.out, params, attention);
              }),
              Each(HasSubstr("sinks is not given on rank 0 but given on rank 1")));
}

TEST(DistributedErrors, StatisticsThatDiffer) {
  const auto errors = errors_of_ranks(2, [](Transport& transport) {
    Local here(20);
    Tensor lse(DType::f32, {1, 2, 20});
    DistributedParams heads = params_for(2, 40);
    heads.scheme = Scheme::heads;
    const AttentionStats asked = transport.rank() ? AttentionStats{} : AttentionStats{.lse = lse};
    distributed_attention(transport, here.q, here.k, here.v, here.out, heads, {}, asked);
  });
  EXPECT_THAT(errors, Each(HasSubstr("row statistics (bits) is 1 on rank 0 but 0 on rank 1")));
}

TEST(DistributedErrors, BadInputOnOneRank) {
  const auto errors = errors_of_ranks(3, [](Transport& transport) {
    Local here(transport.rank() == 1 ? 19 : 20);
    distributed_attention(transport, here.q, here.k, here.v, here.out, params_for(3, 60));
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("q is f32 [1, 2, 19, 8]"), HasSubstr("rank 1 of 3 has 20 rows of 60"))));
}

TEST(DistributedErrors, SharesThatMissARow) {
  const auto errors = errors_of_ranks(2, [](Transport& transport) {
    Local here(20);
    DistributedParams params = params_for(2, 40);
    params.queries = {{{.begin = 0, .end = 20}}, {{.begin = 21, .end = 41}}};
    distributed_attention(transport, here.q, here.k, here.v, here.out, params);
  });
  EXPECT_THAT(errors, Each(HasSubstr("has the rows [21, 41) of 40")));
}

TEST(DistributedErrors, NumbersThatMakeNoSense) {
  const auto errors = errors_of_ranks(1, [](Transport& transport) {
    Local here(20);
    for (const auto& [change, text] :
         {std::pair{+[](DistributedParams& p) { p.key_chunk = 12; }, "key_chunk 12 is not a positive multiple of 8"},
          std::pair{+[](DistributedParams& p) { p.query_block = 0; }, "query_block 0 must be at least 1"},
          std::pair{+[](DistributedParams& p) { p.buffers = 1; }, "buffers 1 must be at least 2"},
          std::pair{+[](DistributedParams& p) { p.timeout_seconds = 0; }, "timeout_seconds 0 must be positive"},
          std::pair{+[](DistributedParams& p) { p.scheme = static_cast<Scheme>(9); }, "scheme 9 is none of"},
          std::pair{+[](DistributedParams& p) { p.head_ranks = 2; }, "head_ranks 2 is not a divisor of the 1 ranks"},
          std::pair{+[](DistributedParams& p) { p.scheme = Scheme::both; }, "scheme both: one rank has no groups"},
          std::pair{+[](DistributedParams& p) { p.queries.clear(); }, "for 0 ranks"}}) {
      DistributedParams params = params_for(1, 20);
      change(params);
      try {
        distributed_attention(transport, here.q, here.k, here.v, here.out, params);
        ADD_FAILURE() << text;
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr(text));
      }
    }
  });
  EXPECT_THAT(errors, Each(""));
}

// A rank that ends before the call, and one that ends in the middle of it.
TEST(DistributedErrors, ARankThatEnds) {
  const auto errors = errors_of_ranks(3, [](Transport& transport) {
    if (transport.rank() == 1) return;
    Local here(20);
    distributed_attention(transport, here.q, here.k, here.v, here.out, params_for(3, 60));
  });
  // A rank that has met its error has ended for the others, too: either may be named first.
  for (const int rank : {0, 2}) EXPECT_THAT(errors[static_cast<std::size_t>(rank)], HasSubstr(" has ended"));
}

// Passes everything on until it has sent a number of messages, then fails.
class Failing : public Transport {
 public:
  Failing(Transport& other, int messages) : other_(other), left_(messages) {}
  int rank() const override { return other_.rank(); }
  int size() const override { return other_.size(); }
  Transfer post_send(int to, const void* data, std::size_t bytes) override {
    if (left_-- == 0) throw Error(ErrorKind::device, "the link is down");
    return other_.post_send(to, data, bytes);
  }
  Transfer post_receive(int from, void* data, std::size_t bytes) override {
    return other_.post_receive(from, data, bytes);
  }
  void wait(Transfer transfer, double timeout_seconds) override { other_.wait(transfer, timeout_seconds); }

 private:
  Transport& other_;
  int left_;
};

TEST(DistributedErrors, ALinkThatFailsInTheMiddle) {
  for (int messages = 2; messages < 8; ++messages) {
    const auto errors = errors_of_ranks(3, [&](Transport& transport) {
      Local here(40);
      Failing failing(transport, messages);
      Transport& used = transport.rank() == 1 ? static_cast<Transport&>(failing) : transport;
      distributed_attention(used, here.q, here.k, here.v, here.out, params_for(3, 120));
    });
    EXPECT_THAT(errors[1], HasSubstr("the link is down")) << messages;
    EXPECT_THAT(errors[2], HasSubstr("rank 1 has ended")) << messages;
  }
}

TEST(DistributedErrors, ARankThatDoesNotAnswer) {
  const auto errors = errors_of_ranks(2, [](Transport& transport) {
    Local here(20);
    DistributedParams params = params_for(2, 40);
    params.timeout_seconds = 0.05;
    if (transport.rank() == 0) {
      distributed_attention(transport, here.q, here.k, here.v, here.out, params);
    } else {  // waits for a message that never comes
      float nothing = 0;
      transport.wait(transport.post_receive(1, &nothing, sizeof nothing), 2);
    }
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 1 did not answer within 0.05 seconds"));
}

TEST(DistributedErrors, WhatIsNotServed) {
  const auto errors = errors_of_ranks(2, [](Transport& transport) {
    Local here(20);
    Tensor weights(DType::f32, {1, 2, 20, 40});
    DistributedParams params = params_for(2, 40);
    params.scheme = Scheme::heads;
    distributed_attention(transport, here.q, here.k, here.v, here.out, params, {}, {.weights = weights});
  });
  EXPECT_THAT(errors, Each(HasSubstr("weights have the rows of this rank, and heads have all rows")));
}

TEST(DistributedErrors, ComputingInE4m3) {
  const auto errors = errors_of_ranks(2, [](Transport& transport) {
    Local here(20);
    AttentionParams params;
    params.compute = DType::f8e4m3;
    distributed_attention(transport, here.q, here.k, here.v, here.out, params_for(2, 40), params);
  });
  EXPECT_THAT(errors, Each(HasSubstr("compute is not served across ranks")));
}

TEST(DistributedErrors, MapsOfOtherSizes) {
  const auto errors = errors_of_ranks(2, [](Transport& transport) {
    Local here(20);
    Tensor map(DType::f32, {1, 2, transport.rank() ? 5 : 4, 4});
    distributed_attention(transport, here.q, here.k, here.v, here.out, params_for(2, 40), {}, {.pooled_map = map});
  });
  EXPECT_THAT(errors, Each(HasSubstr("pooled_map rows is 4 on rank 0 but 5 on rank 1")));
  const auto rows = errors_of_ranks(2, [](Transport& transport) {
    Local here(20);
    const Tensor chosen = i32_tensor({3, 20});
    Tensor weights(DType::f32, {1, 2, 2, 40});
    AttentionParams params;
    params.stats.weight_rows = chosen;
    distributed_attention(transport, here.q, here.k, here.v, here.out, params_for(2, 40), params, {.weights = weights});
  });
  EXPECT_THAT(rows, Each(HasSubstr("stats.weight_rows[1] is 20, not a row of the 20 of this rank")));
}

// One rank has a bias for each of its rows, the other one for all.
TEST(DistributedErrors, RowsOfABiasThatDiffer) {
  const auto errors = errors_of_ranks(2, [](Transport& transport) {
    Local here(20);
    const Tensor bias(DType::f32, {1, 1, transport.rank() ? 1 : 20, 40});
    Tensor mass(DType::f32, {1, 2, 20});
    AttentionParams params;
    params.bias = bias;
    distributed_attention(transport, here.q, here.k, here.v, here.out, params_for(2, 40), params,
                          {.column_mass = mass});
  });
  EXPECT_THAT(errors, Each(HasSubstr("bias has 1 rows on rank 1, which has 20 queries")));
}

TEST(DistributedErrors, BlocksThatDiffer) {
  const auto errors = errors_of_ranks(2, [](Transport& transport) {
    Local here(20);
    const Tensor blocks = random_mask({1, 1, 4, 4}, 3, transport.rank() ? 0.0 : 1.0);
    AttentionParams params;
    params.block_mask = blocks;
    params.block_q = params.block_kv = 10;
    distributed_attention(transport, here.q, here.k, here.v, here.out, params_for(2, 40), params);
  });
  EXPECT_THAT(errors, Each(HasSubstr("block_mask on rank 0 and on rank 1 are not the same")));
}

}  // namespace
}  // namespace rootdk::test
