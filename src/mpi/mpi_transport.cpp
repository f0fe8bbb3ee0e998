#include "rootdk/mpi.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <sstream>
#include <thread>
#include <vector>

#include "rootdk/error.h"

namespace rootdk {
namespace {

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw Error(ErrorKind::device, message.str());
}

void check(int code, const char* function) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(function, ": ", text);
}

// A message counts its bytes in an int.
constexpr std::size_t kLargestMessage = std::size_t{1} << 30;
// Large messages go in fragments, a few of them in each call of the library. A thread that has waited for its turn on a
// busy core moves several.
constexpr int kCallsOfTurn = 16;

class MpiTransport : public Transport {
 public:
  explicit MpiTransport(MPI_Comm communicator) {
    int started = 0, level = 0;
    check(MPI_Initialized(&started), "MPI_Initialized");
    if (!started) fail("mpi_transport: MPI has not been started (MPI_Init_thread)");
    check(MPI_Query_thread(&level), "MPI_Query_thread");
    if (level < MPI_THREAD_SERIALIZED) {
      throw Error(ErrorKind::invalid_argument, "mpi_transport: MPI was started with thread level " +
                                                   std::to_string(level) + ", and MPI_THREAD_SERIALIZED (" +
                                                   std::to_string(MPI_THREAD_SERIALIZED) + ") is needed");
    }
    check(MPI_Comm_dup(communicator, &communicator_), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(communicator_, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(communicator_, &size_), "MPI_Comm_size");
  }

  // A communicator with a failure is left alone: freeing it would wait for the others.
  ~MpiTransport() override {
    int ended = 0;
    MPI_Finalized(&ended);
    if (!ended && !failed_) MPI_Comm_free(&communicator_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Transfer post_send(int to, const void* data, std::size_t bytes) override {
    return post(to, const_cast<void*>(data), bytes, true);
  }
  Transfer post_receive(int from, void* data, std::size_t bytes) override { return post(from, data, bytes, false); }

  void wait(Transfer transfer, double timeout_seconds) override {
    const auto found = open_.find(transfer);
    if (found == open_.end()) return;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_seconds);
    for (int tries = 0; !ended_soon(found->second); ++tries) {
      if (std::chrono::steady_clock::now() > deadline) give_up(found->second, timeout_seconds);
      pause(tries);
    }
    open_.erase(found);
  }

  bool progress() override {
    for (int i = 0; i < kCallsOfTurn; ++i) {
      int there = 0;
      MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, communicator_, &there, MPI_STATUS_IGNORE);
    }
    return true;
  }

 private:
  struct Open {
    std::vector<MPI_Request> requests = {};
    int peer = 0;
    std::size_t bytes = 0;
    bool is_send = false;
  };

  Transfer post(int peer, void* data, std::size_t bytes, bool is_send) {
    if (failed_) fail("rank ", rank_, ": the group has failed before, and is of no further use");
    if (peer < 0 || peer >= size_) fail("rank ", rank_, ": there is no rank ", peer, " of ", size_);
    Open open{.peer = peer, .bytes = bytes, .is_send = is_send};
    for (std::size_t at = 0; at < bytes; at += kLargestMessage) {
      const auto count = static_cast<int>(std::min(kLargestMessage, bytes - at));
      void* const part = static_cast<char*>(data) + at;
      MPI_Request& request = open.requests.emplace_back(MPI_REQUEST_NULL);
      const int code = is_send ? MPI_Isend(part, count, MPI_BYTE, peer, 0, communicator_, &request)
                               : MPI_Irecv(part, count, MPI_BYTE, peer, 0, communicator_, &request);
      if (code != MPI_SUCCESS) failed_ = true;
      check(code, is_send ? "MPI_Isend" : "MPI_Irecv");
    }
    open_.emplace(++last_, std::move(open));
    return last_;
  }

  bool ended(Open& open) {
    while (!open.requests.empty()) {
      int done = 0;
      MPI_Status status;
      const int code = MPI_Test(&open.requests.back(), &done, &status);
      if (code != MPI_SUCCESS) {
        failed_ = true;
        char text[MPI_MAX_ERROR_STRING] = "";
        int length = 0;
        MPI_Error_string(code, text, &length);
        fail(describe(open), ": ", text);
      }
      if (!done) return false;
      open.requests.pop_back();
    }
    return true;
  }

  bool ended_soon(Open& open) {
    for (int i = 0; i < kCallsOfTurn; ++i) {
      if (ended(open)) return true;
    }
    return false;
  }

  std::string describe(const Open& open) const {
    return "rank " + std::to_string(rank_) + ": " + (open.is_send ? "send" : "receive") + " of " +
           std::to_string(open.bytes) + " bytes, rank " + std::to_string(open.peer);
  }

  [[noreturn]] void give_up(Open& open, double timeout_seconds) {
    failed_ = true;
    for (MPI_Request& request : open.requests) {
      if (!open.is_send) MPI_Cancel(&request);
      MPI_Request_free(&request);
    }
    fail(describe(open), " did not answer within ", timeout_seconds, " seconds");
  }

  // Short waits spin; longer ones leave the core to those who compute.
  static void pause(int tries) {
    if (tries < 200) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(tries < 2000 ? 20 : 200));
    }
  }

  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  bool failed_ = false;
  Transfer last_ = 0;
  std::map<Transfer, Open> open_;
};

}  // namespace

std::unique_ptr<Transport> mpi_transport(MPI_Comm communicator) { return std::make_unique<MpiTransport>(communicator); }

}  // namespace rootdk
