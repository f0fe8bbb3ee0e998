#include "distributed/device_exchange.h"

#include <map>
#include <set>
#include <tuple>

#include "core/check.h"

namespace rootdk::distributed {
namespace {

// A message is a range of rows of one tensor, [rows, batch, heads, width] without gaps, seen as [batch, heads, rows,
// width].
TensorView block_view(void* data, const ConstTensorView& like, std::int64_t rows) {
  const std::int64_t batch = like.size(0), heads = like.size(1), width = like.size(3);
  const std::int64_t shape[] = {batch, heads, rows, width};
  TensorView view(data, like.dtype, shape, like.device);
  view.strides = {heads * width, width, batch * heads * width, 1};
  return view;
}

// Whether rows lie as a message has them, so that they need no copy.
bool is_block(const ConstTensorView& view) {
  const TensorView block = block_view(nullptr, view, view.size(2));
  for (int d = 0; d < 4; ++d) {
    if (view.size(d) > 1 && view.stride(d) != block.stride(d)) return false;
  }
  return true;
}

struct Block {
  std::size_t rank = 0, tensor = 0;
  RowRange rows{};
  TensorView view{};      // where the message lies
  bool is_apart = false;  // in memory of its own
};

// All messages to other ranks or from them, in the order in which both sides have them.
template <class View>
std::vector<Block> list_blocks(const PlacedRows<View>& placed, const RowLists& lists, int here) {
  std::vector<Block> blocks;
  for (std::size_t r = 0; r < lists.size(); ++r) {
    if (static_cast<int>(r) == here) continue;
    for (std::size_t tensor = 0; tensor < placed.tensors.size(); ++tensor) {
      for (const RowRange& rows : lists[r]) blocks.push_back({.rank = r, .tensor = tensor, .rows = rows});
    }
  }
  return blocks;
}

// Memory for the blocks that are apart, one after another; `same` says which block has the memory already.
template <class Same>
DeviceMemory place_apart(DeviceQueue& queue, std::vector<Block>& blocks, const PlacedRows<ConstTensorView>& like,
                         Same same) {
  constexpr std::size_t kAligned = 256;
  std::vector<std::size_t> at(blocks.size());
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (!blocks[i].is_apart) continue;
    const std::size_t before = same(i);
    at[i] = before < i ? at[before] : bytes;
    const ConstTensorView& tensor = like.tensors[blocks[i].tensor];
    blocks[i].view = block_view(nullptr, tensor, blocks[i].rows.end - blocks[i].rows.begin);
    if (before == i) bytes += (bytes_of(blocks[i].view) + kAligned - 1) / kAligned * kAligned;
  }
  if (bytes == 0) return {};
  DeviceMemory memory(queue, bytes);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].is_apart) blocks[i].view.data = memory.data() + at[i];
  }
  return memory;
}

struct Messages {
  std::vector<Block> blocks{};
  DeviceMemory memory{};

  std::vector<DeviceMessage> list() const {
    std::vector<DeviceMessage> messages;
    for (const Block& block : blocks) {
      messages.push_back(
          {.peer = static_cast<int>(block.rank), .data = block.view.data, .bytes = bytes_of(block.view)});
    }
    return messages;
  }
};

// Rows that do not lie as messages do are copied, once for all ranks that get the same ones.
Messages pack(const DeviceLink& link, const PlacedRows<ConstTensorView>& from, const RowLists& send) {
  Messages sent{.blocks = list_blocks(from, send, link.transport.rank())};
  std::map<std::tuple<std::size_t, std::int64_t, std::int64_t>, std::size_t> first;
  std::vector<std::size_t> same(sent.blocks.size());
  for (std::size_t i = 0; i < sent.blocks.size(); ++i) {
    Block& block = sent.blocks[i];
    const ConstTensorView rows = from.at(block.tensor, block.rows);
    block.is_apart = !is_block(rows);
    if (!block.is_apart) block.view = block_view(const_cast<void*>(rows.data), rows, rows.size(2));
    same[i] = first.emplace(std::tuple(block.tensor, block.rows.begin, block.rows.end), i).first->second;
  }
  sent.memory = place_apart(link.queue, sent.blocks, from, [&](std::size_t i) { return same[i]; });
  for (std::size_t i = 0; i < sent.blocks.size(); ++i) {
    const Block& block = sent.blocks[i];
    if (block.is_apart && same[i] == i) link.queue.copy_rows(block.view, from.at(block.tensor, block.rows));
  }
  return sent;
}

// What replaces rows that lie as messages do comes there at once.
Messages make_room(const DeviceLink& link, const PlacedRows<ConstTensorView>& like, const PlacedRows<TensorView>& to,
                   const RowLists& receive, Arrival arrival) {
  Messages received{.blocks = list_blocks(to, receive, link.transport.rank())};
  for (Block& block : received.blocks) {
    const TensorView rows = to.at(block.tensor, block.rows);
    block.is_apart = arrival == Arrival::add || !is_block(rows) || rows.dtype != like.tensors[block.tensor].dtype;
    if (!block.is_apart) block.view = block_view(rows.data, rows, rows.size(2));
  }
  received.memory = place_apart(link.queue, received.blocks, like, [](std::size_t i) { return i; });
  return received;
}

// The messages in pinned memory of the host, one after another. After a failure a transfer may still write: the memory
// is then kept.
class HostMessages {
 public:
  HostMessages(DeviceQueue& queue, std::span<const DeviceMessage> messages) : queue_(queue) {
    std::map<void*, std::size_t> at;
    std::size_t bytes = 0;
    for (const DeviceMessage& message : messages) {
      if (at.emplace(message.data, bytes).second) bytes += message.bytes;
    }
    if (bytes > 0) memory_ = static_cast<std::byte*>(queue.allocate_host(bytes));
    for (const DeviceMessage& message : messages) {
      list_.push_back({.peer = message.peer, .data = memory_ + at[message.data], .bytes = message.bytes});
    }
  }
  void release() {
    if (memory_) queue_.release_host(memory_);
    memory_ = nullptr;
  }
  const std::vector<DeviceMessage>& list() const { return list_; }

 private:
  DeviceQueue& queue_;
  std::byte* memory_ = nullptr;
  std::vector<DeviceMessage> list_;
};

void exchange_through_host(const DeviceLink& link, std::span<const DeviceMessage> send,
                           std::span<const DeviceMessage> receive) {
  HostMessages sent(link.queue, send), received(link.queue, receive);
  std::vector<Transport::Transfer> transfers;
  for (const DeviceMessage& message : received.list()) {
    transfers.push_back(link.transport.post_receive(message.peer, message.data, message.bytes));
  }
  std::set<const void*> copied;  // several ranks may get the same rows
  for (std::size_t i = 0; i < send.size(); ++i) {
    if (copied.insert(send[i].data).second) link.queue.copy(sent.list()[i].data, send[i].data, send[i].bytes);
  }
  link.queue.wait();
  for (const DeviceMessage& message : sent.list()) {
    transfers.push_back(link.transport.post_send(message.peer, message.data, message.bytes));
  }
  for (const Transport::Transfer transfer : transfers) link.transport.wait(transfer, link.timeout_seconds);
  for (std::size_t i = 0; i < receive.size(); ++i) {
    link.queue.copy(receive[i].data, received.list()[i].data, receive[i].bytes);
  }
  link.queue.wait();
  sent.release();
  received.release();
}

}  // namespace

std::size_t bytes_of(const ConstTensorView& view) {
  return static_cast<std::size_t>(view.elements()) * size_of(view.dtype);
}

DeviceTensor device_tensor(DeviceQueue& queue, DType dtype, std::initializer_list<std::int64_t> shape) {
  TensorView view(nullptr, dtype, std::span(shape.begin(), shape.size()), queue.device());
  DeviceMemory memory(queue, bytes_of(view));
  view.data = memory.data();
  return {.memory = std::move(memory), .view = view};
}

DeviceTensor device_rows(DeviceQueue& queue, DType dtype, const ConstTensorView& like, std::int64_t rows) {
  ConstTensorView typed = like;
  typed.dtype = dtype;
  typed.device = queue.device();
  TensorView view = block_view(nullptr, typed, rows);
  DeviceMemory memory(queue, bytes_of(view));
  view.data = memory.data();
  return {.memory = std::move(memory), .view = view};
}

void exchange_rows(const DeviceLink& link, const PlacedRows<ConstTensorView>& from, const RowLists& send,
                   const PlacedRows<TensorView>& to, const RowLists& receive, Arrival arrival) {
  const Messages sent = pack(link, from, send), received = make_room(link, from, to, receive, arrival);
  if (link.transport.size() > 1) {
    const std::vector<DeviceMessage> out = sent.list(), in = received.list();
    if (link.transport.takes_device_memory(link.queue.device())) {
      link.transport.exchange_on_device(out, in, link.queue.stream(), link.timeout_seconds);
    } else {
      exchange_through_host(link, out, in);
    }
  }
  const auto put = [&](const TensorView& rows, const ConstTensorView& came) {
    arrival == Arrival::add ? link.queue.add_rows(rows, came) : link.queue.copy_rows(rows, came);
  };
  auto block = received.blocks.begin();
  for (std::size_t r = 0; r < receive.size(); ++r) {
    if (static_cast<int>(r) == link.transport.rank()) {
      for (std::size_t tensor = 0; tensor < from.tensors.size(); ++tensor) {
        for (const RowRange& rows : receive[r]) put(to.at(tensor, rows), from.at(tensor, rows));
      }
    }
    for (; block != received.blocks.end() && block->rank == r; ++block) {
      if (block->is_apart) put(to.at(block->tensor, block->rows), block->view);
    }
  }
}

}  // namespace rootdk::distributed
