// What the ranks of a ring post, and when: neither changes a result, but both decide how much of the transfer is
// hidden.

#include <gtest/gtest.h>

#include "distributed/ranks.h"

namespace rootdk::test {
namespace {

// Passes everything on, and notes what is posted after the ranks have agreed.
class NotedTransport : public Transport {
 public:
  NotedTransport(Transport& under, bool moves_by_itself) : under_(under), moves_by_itself_(moves_by_itself) {}

  int rank() const override { return under_.rank(); }
  int size() const override { return under_.size(); }
  Transfer post_send(int to, const void* data, std::size_t bytes) override {
    posts += 's';
    return under_.post_send(to, data, bytes);
  }
  Transfer post_receive(int from, void* data, std::size_t bytes) override {
    posts += 'r';
    return under_.post_receive(from, data, bytes);
  }
  void wait(Transfer transfer, double timeout_seconds) override { under_.wait(transfer, timeout_seconds); }
  bool progress() override {
    ++progress_calls;
    return !moves_by_itself_;
  }
  void all_to_all(const void* send, std::span<const std::size_t> send_bytes, void* receive,
                  std::span<const std::size_t> receive_bytes, double timeout_seconds) override {
    under_.all_to_all(send, send_bytes, receive, receive_bytes, timeout_seconds);
  }

  std::string posts;
  int progress_calls = 0;

 private:
  Transport& under_;
  bool moves_by_itself_;
};

struct Noted {
  std::string posts;
  int progress_calls;
};

// A ring of striped shares, whose buffers are full most of the time.
std::vector<Noted> run_ring(int ranks, bool moves_by_itself) {
  constexpr std::int64_t kRows = 4096, kChunk = 256;
  std::vector<Noted> noted(static_cast<std::size_t>(ranks));
  const auto errors = errors_of_ranks(ranks, [&](Transport& transport) {
    NotedTransport here(transport, moves_by_itself);
    const Shares shares = striped_shares(kRows, ranks, kChunk);
    const std::int64_t rows = rows_of(shares, here.rank());
    Tensor q(DType::f32, {1, 2, rows, 64}), k(DType::f32, {1, 2, rows, 64}), out(DType::f32, {1, 2, rows, 64});
    distributed_attention(here, q, k, k, out, {.queries = shares, .scheme = Scheme::ring, .key_chunk = kChunk});
    noted[static_cast<std::size_t>(here.rank())] = {here.posts, here.progress_calls};
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return noted;
}

// Transports announce a receive on the link that the sends fill, behind their data.
TEST(Stream, ReceivesArePostedBeforeSends) {
  for (const int ranks : {2, 3}) {
    for (const Noted& rank : run_ring(ranks, true)) {
      const std::string first(3, 'r');  // as many as there are buffers
      EXPECT_EQ(rank.posts.substr(0, 4), first + 's') << rank.posts;
    }
  }
}

TEST(Stream, ATransportThatMovesDataByItselfIsNotAsked) {
  int calls = 0, asked = 0;
  for (const Noted& rank : run_ring(2, true)) calls += rank.progress_calls;
  for (const Noted& rank : run_ring(2, false)) asked += rank.progress_calls;
  EXPECT_LE(calls, 2 * 4096 / 256);  // once for a wait
  EXPECT_GT(asked, 0);
}

}  // namespace
}  // namespace rootdk::test
