#pragma once

// Items pass by every rank that needs them, in order of position. A thread receives them and sends them on, while the
// caller computes with those that are there.

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "distributed/stream_plan.h"

namespace rootdk::distributed {

class Stream {
 public:
  // tensors: this rank's rows, each [batch, heads, rows, width], whose rows travel together.
  // capacity: items in memory at a time that come here, and as many that only go from here.
  Stream(Transport& transport, std::vector<StreamItem> items, std::vector<ConstTensorView> tensors,
         std::int64_t capacity, double timeout_seconds);
  ~Stream();

  // Calls use(run, tensors of the run) for every item that is needed here, in order. The tensors have the shape
  // [batch, heads, rows of the run, width].
  using Use = std::function<void(const Run& run, const std::vector<ConstTensorView>& tensors)>;
  void run(const Use& use);

  // The most bytes that were in memory at once.
  std::size_t peak_bytes() const { return peak_bytes_; }

 private:
  struct Memory {
    std::unique_ptr<std::byte[]> data;
    std::size_t bytes = 0;
  };
  // A part that arrives here or starts here.
  struct Hop {
    std::size_t arrival = 0;  // index into arrivals_
    const StreamPart* part = nullptr;
    int from = -1, to = -1;  // ranks; -1: it starts or ends here
    Memory memory{};
    Transport::Transfer receive = 0, send = 0;
    bool here = false;  // its data
  };
  // An item that has hops here.
  struct Arrival {
    std::size_t item = 0;
    std::vector<std::size_t> hops{};
    std::size_t missing = 0;  // parts that have not come yet
    bool consumed = false;
    bool comes = false;      // has parts that come here
    std::size_t number = 0;  // among those that come, or those that only go
  };

  void make_hops();
  void transfer();  // the thread
  void transfer_all();
  bool issue_all();
  void issue(std::size_t hop);
  bool has_passed(const Arrival& arrival) const;
  void finish(Hop& hop);
  void send_to(int rank);
  bool has_room(const Arrival& arrival) const;
  void release(std::size_t arrival);
  void wait_consumed(std::size_t arrival);
  bool is_consumed(std::size_t arrival);
  void check_stopped();
  Memory take(std::size_t bytes);
  void give_back(Memory& memory);

  void use_item(std::size_t item, const Use& use);
  std::vector<ConstTensorView> local_views(const StreamPart& part) const;
  std::vector<ConstTensorView> views_of(const std::byte* data, std::int64_t rows) const;
  void pack(const StreamPart& part, std::byte* to) const;
  void place(const StreamPart& part, const std::vector<ConstTensorView>& from, std::byte* item,
             std::int64_t item_rows) const;
  std::size_t bytes_of(std::int64_t rows) const;

  Transport& transport_;
  std::vector<StreamItem> items_;
  std::vector<ConstTensorView> tensors_;
  std::size_t capacity_;
  double timeout_seconds_;
  std::vector<Hop> hops_;
  std::vector<Arrival> arrivals_;
  std::vector<std::ptrdiff_t> arrival_of_item_;
  std::vector<std::size_t> receives_, starts_;  // hops that come, and that start here
  std::size_t receives_issued_ = 0, starts_issued_ = 0;
  std::size_t released_[2] = {};                  // items that only went, and that came
  std::vector<std::deque<std::size_t>> to_send_;  // [rank]: hops that are not sent yet, in order

  std::mutex mutex_;
  std::condition_variable changed_;
  std::exception_ptr failure_;
  bool stopped_ = false;
  std::size_t bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace rootdk::distributed
