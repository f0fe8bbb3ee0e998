// Ranks as threads of one process. A send ends when its receiver has the data, as large messages of MPI do: a schedule
// that would block there blocks here, too.

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>

#include "core/check.h"
#include "rootdk/distributed.h"

namespace rootdk {
namespace {

struct Message {
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t bytes = 0;
  int peer = 0;
  bool done = false;
  std::string failure = {};
};

using Queue = std::deque<std::shared_ptr<Message>>;

// Sends and receives from one rank to another that have not met yet.
struct Pair {
  Queue sends, receives;
};

struct World {
  explicit World(int count)
      : ranks(count),
        pairs(static_cast<std::size_t>(count) * static_cast<std::size_t>(count)),
        ended(static_cast<std::size_t>(count)) {}

  Pair& pair(int from, int to) { return pairs[static_cast<std::size_t>(from * ranks + to)]; }

  void match(Pair& pair) {
    while (!pair.sends.empty() && !pair.receives.empty()) {
      Message &send = *pair.sends.front(), &receive = *pair.receives.front();
      if (send.bytes == receive.bytes) {
        std::memcpy(receive.to, send.from, send.bytes);
      } else {
        send.failure = receive.failure =
            "a message of " + std::to_string(send.bytes) + " bytes met a receive of " + std::to_string(receive.bytes);
      }
      send.done = receive.done = true;
      pair.sends.pop_front();
      pair.receives.pop_front();
    }
    changed.notify_all();
  }

  int ranks;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Pair> pairs;
  std::vector<bool> ended;
};

class ThreadTransport : public Transport {
 public:
  ThreadTransport(std::shared_ptr<World> world, int rank) : world_(std::move(world)), rank_(rank) {}

  ~ThreadTransport() override {
    const std::lock_guard lock(world_->mutex);
    world_->ended[static_cast<std::size_t>(rank_)] = true;
    for (int r = 0; r < world_->ranks; ++r) {
      world_->pair(r, rank_).receives.clear();
      world_->pair(rank_, r).sends.clear();
    }
    world_->changed.notify_all();
  }

  int rank() const override { return rank_; }
  int size() const override { return world_->ranks; }

  Transfer post_send(int to, const void* data, std::size_t bytes) override {
    const std::lock_guard lock(world_->mutex);
    auto message = std::make_shared<Message>(Message{.from = data, .bytes = bytes, .peer = to});
    world_->pair(rank_, to).sends.push_back(message);
    world_->match(world_->pair(rank_, to));
    return keep(std::move(message));
  }

  Transfer post_receive(int from, void* data, std::size_t bytes) override {
    const std::lock_guard lock(world_->mutex);
    auto message = std::make_shared<Message>(Message{.to = data, .bytes = bytes, .peer = from});
    world_->pair(from, rank_).receives.push_back(message);
    world_->match(world_->pair(from, rank_));
    return keep(std::move(message));
  }

  void wait(Transfer transfer, double timeout_seconds) override {
    std::unique_lock lock(world_->mutex);
    const auto found = open_.find(transfer);
    if (found == open_.end()) return;
    const std::shared_ptr<Message> message = found->second;
    const auto peer = static_cast<std::size_t>(message->peer);
    world_->changed.wait_for(lock, std::chrono::duration<double>(timeout_seconds),
                             [&] { return message->done || world_->ended[peer]; });
    open_.erase(found);
    const char* what = message->to ? "receive" : "send";
    require(message->failure.empty(), ErrorKind::device, "rank ", rank_, ": ", message->failure, " (rank ",
            message->peer, ")");
    if (message->done) return;
    require(!world_->ended[peer], ErrorKind::device, "rank ", rank_, ": ", what, " of ", message->bytes,
            " bytes: rank ", message->peer, " has ended");
    fail(ErrorKind::device, "rank ", rank_, ": ", what, " of ", message->bytes, " bytes: rank ", message->peer,
         " did not answer within ", timeout_seconds, " seconds");
  }

 private:
  Transfer keep(std::shared_ptr<Message> message) {
    open_.emplace(++last_, std::move(message));
    return last_;
  }

  std::shared_ptr<World> world_;
  int rank_;
  Transfer last_ = 0;
  std::map<Transfer, std::shared_ptr<Message>> open_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> thread_transports(int ranks) {
  require(ranks >= 1, "thread_transports: ", ranks, " ranks must be at least 1");
  auto world = std::make_shared<World>(ranks);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int r = 0; r < ranks; ++r) transports.push_back(std::make_unique<ThreadTransport>(world, r));
  return transports;
}

}  // namespace rootdk
