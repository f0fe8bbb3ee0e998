#include <cstring>

#include "core/check.h"
#include "rootdk/distributed.h"

namespace rootdk {

void Transport::all_to_all(const void* send, std::span<const std::size_t> send_bytes, void* receive,
                           std::span<const std::size_t> receive_bytes, double timeout_seconds) {
  const int ranks = size(), here = rank();
  require(static_cast<int>(send_bytes.size()) == ranks && static_cast<int>(receive_bytes.size()) == ranks,
          "all_to_all: ", send_bytes.size(), " messages to send and ", receive_bytes.size(), " to receive for ", ranks,
          " ranks");
  std::vector<Transfer> transfers;
  auto* to = static_cast<std::byte*>(receive);
  const std::byte* own_to = nullptr;
  for (int r = 0; r < ranks; ++r) {
    const std::size_t bytes = receive_bytes[static_cast<std::size_t>(r)];
    if (r == here) own_to = to;
    if (r != here && bytes) transfers.push_back(post_receive(r, to, bytes));
    to += bytes;
  }
  const auto* from = static_cast<const std::byte*>(send);
  for (int r = 0; r < ranks; ++r) {
    const std::size_t bytes = send_bytes[static_cast<std::size_t>(r)];
    if (r == here && bytes) std::memcpy(const_cast<std::byte*>(own_to), from, bytes);
    if (r != here && bytes) transfers.push_back(post_send(r, from, bytes));
    from += bytes;
  }
  for (const Transfer transfer : transfers) wait(transfer, timeout_seconds);
}

bool Transport::takes_device_memory(Device) const { return false; }

void Transport::exchange_on_device(std::span<const DeviceMessage>, std::span<const DeviceMessage>, void*, double) {
  fail(ErrorKind::unsupported, "rank ", rank(), ": this transport takes no memory of a device");
}

}  // namespace rootdk
