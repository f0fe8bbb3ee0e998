#pragma once

// What the forward and the backward pass on a device share: the gathered keys, the calls of a rank and their streams.

#include "distributed/call.h"
#include "distributed/device_exchange.h"
#include "distributed/device_parts.h"

namespace rootdk::distributed {

// Which rows go where: by the parts of every rank, which all ranks know.
struct DevicePlan {
  std::vector<DeviceCall> calls{};  // of this rank
  RowLists wanted{};                // of this rank's keys, by the rank that sees them
  RowLists coming{};                // of the keys that this rank sees, by the rank that holds them
  RowRange seen{};                  // all of them lie here
};
DevicePlan device_plan(const Call& call, int rank);

// k and v from the first key that this rank sees to the last.
struct GatheredKeys {
  DeviceTensor k{}, v{};
  PlacedRows<ConstTensorView> rows{};  // k, v
};
GatheredKeys gather_keys(const DeviceLink& link, const Call& call, const DevicePlan& plan, const ConstTensorView& k,
                         const ConstTensorView& v);

// The starts of the calls of packed sequences, on the device.
class CallStarts {
 public:
  // all_packed: also those of one part.
  CallStarts(DeviceQueue& queue, const std::vector<DeviceCall>& calls, bool all_packed);
  // What a call is asked for: the options of the whole with the window and the starts of its parts.
  AttentionParams params(const AttentionParams& whole, const DeviceCall& call, std::size_t index) const;

 private:
  DeviceTensor memory_{};
  std::vector<std::int64_t> first_{};  // of each call; -1: it is not packed
};

// Up to four queues for the calls of a rank: the multiprocessors that one call leaves idle at its end work on the next.
class Branches {
 public:
  Branches(DeviceQueue& main, std::size_t calls);
  ~Branches();  // the main queue goes on after all of them
  Branches(const Branches&) = delete;
  Branches& operator=(const Branches&) = delete;

  DeviceQueue& of(std::size_t call) { return branches_.empty() ? main_ : *branches_[call % branches_.size()]; }

 private:
  DeviceQueue& main_;
  std::vector<std::unique_ptr<DeviceQueue>> branches_;
};

// How a call runs on a queue: scratch memory comes from there, and goes back with this.
class QueueExecution {
 public:
  QueueExecution(DeviceQueue& queue, Execution execution);
  QueueExecution(const QueueExecution&) = delete;
  QueueExecution& operator=(const QueueExecution&) = delete;
  operator const Execution&() const { return execution_; }

 private:
  DeviceQueue& queue_;
  DeviceMemory workspace_{};
  Execution execution_;
};

// The entries and rows of a call; not given: not given.
template <class View>
View rows_of_call(const View& view, const DeviceCall& call) {
  if (!view.defined()) return view;
  return view.slice(0, call.batch.begin, call.batch.end).slice(2, call.rows.begin, call.rows.end);
}

// The keys or values of a call: a view of the gathered ones, or a copy where its ranges lie apart.
struct KeysOfCall {
  DeviceTensor copy{};
  ConstTensorView view{};
};
KeysOfCall keys_of_call(DeviceQueue& queue, const PlacedRows<ConstTensorView>& rows, std::size_t tensor,
                        const DeviceCall& call);

}  // namespace rootdk::distributed
