#pragma once

// Rows of tensors on a device that go from rank to rank: from device to device where the transport takes such memory,
// else through pinned memory of the host.

#include <optional>
#include <vector>

#include "core/device_queue.h"
#include "distributed/whole.h"

namespace rootdk::distributed {

// Memory that lives as long as this does, in the order of a queue.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(DeviceQueue& queue, std::size_t bytes) : queue_(&queue), data_(queue.allocate(bytes)) {}
  DeviceMemory(DeviceMemory&& other) noexcept
      : queue_(std::exchange(other.queue_, nullptr)), data_(std::exchange(other.data_, nullptr)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(queue_, other.queue_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~DeviceMemory() {
    if (queue_) queue_->release(data_);
  }

  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  DeviceQueue* queue_ = nullptr;
  void* data_ = nullptr;
};

// A contiguous tensor in such memory.
struct DeviceTensor {
  DeviceMemory memory{};
  TensorView view{};
};
DeviceTensor device_tensor(DeviceQueue& queue, DType dtype, std::initializer_list<std::int64_t> shape);
// [batch, heads, rows, width] stored row after row, as messages are: a range of rows is one piece of memory.
DeviceTensor device_rows(DeviceQueue& queue, DType dtype, const ConstTensorView& like, std::int64_t rows);
std::size_t bytes_of(const ConstTensorView& view);

struct DeviceLink {
  Transport& transport;
  DeviceQueue& queue;
  double timeout_seconds = 300;
};

// Tensors [batch, heads, rows, width] whose rows are found by their number in the whole: those of a share, or rows that
// follow one another from `first` on.
template <class View>
struct PlacedRows {
  std::vector<View> tensors{};
  std::optional<RowMap> share{};
  std::int64_t first = 0;

  // `rows` lie in one range of the share.
  View at(std::size_t tensor, const RowRange& rows) const {
    if (rows.begin == rows.end) return tensors[tensor].slice(2, 0, 0);
    const std::int64_t begin = share ? share->within(rows.begin, rows.end).at(0).local : rows.begin - first;
    return tensors[tensor].slice(2, begin, begin + rows.end - rows.begin);
  }
};

// For each rank, ranges of rows.
using RowLists = std::vector<std::vector<RowRange>>;
enum class Arrival { replace, add };

// The rows send[r] of `from` go to rank r; receive[r] come from it and replace those of `to`, or are added to them, in
// order of the ranks. This rank's own rows are among them, and take no message.
void exchange_rows(const DeviceLink& link, const PlacedRows<ConstTensorView>& from, const RowLists& send,
                   const PlacedRows<TensorView>& to, const RowLists& receive, Arrival arrival);

}  // namespace rootdk::distributed
