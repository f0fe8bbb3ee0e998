#include <chrono>
#include <cstring>
#include <sstream>
#include <thread>
#include <vector>

#include "nccl/nccl_library.h"
#include "rootdk/error.h"

namespace rootdk {
namespace {

template <class... Parts>
[[noreturn]] void fail(ErrorKind kind, const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw Error(kind, message.str());
}

void check(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  fail(status == cudaErrorMemoryAllocation ? ErrorKind::out_of_memory : ErrorKind::device, "nccl: ", doing, ": ",
       cudaGetErrorString(status));
}

// NCCL works on the current device.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    check(cudaGetDevice(&previous_), "reading the current device");
    check(cudaSetDevice(device), "making the device current");
  }
  ~CurrentDevice() { cudaSetDevice(previous_); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int previous_ = 0;
};

class NcclTransport final : public Transport {
 public:
  NcclTransport(Transport* host, const NcclId& id, int rank, int size, int device)
      : nccl_(nccl::require_library("nccl_transport")), host_(host), rank_(rank), size_(size), device_(device) {
    if (size < 1 || rank < 0 || rank >= size) {
      fail(ErrorKind::invalid_argument, "nccl_transport: rank ", rank, " of ", size);
    }
    const CurrentDevice current(device_);
    check_nccl(nccl_.comm_init_rank(&communicator_, size, id, rank), "ncclCommInitRank");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event");
  }

  ~NcclTransport() override {
    if (communicator_) nccl_.comm_destroy(communicator_);
    cudaFree(staging_);
    cudaEventDestroy(event_);
    cudaStreamDestroy(stream_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Transfer post_send(int to, const void* data, std::size_t bytes) override {
    return host("send").post_send(to, data, bytes);
  }
  Transfer post_receive(int from, void* data, std::size_t bytes) override {
    return host("receive").post_receive(from, data, bytes);
  }
  void wait(Transfer transfer, double timeout_seconds) override { host("wait").wait(transfer, timeout_seconds); }
  bool progress() override { return host_ && host_->progress(); }

  void all_to_all(const void* send, std::span<const std::size_t> send_bytes, void* receive,
                  std::span<const std::size_t> receive_bytes, double timeout_seconds) override {
    if (host_) return host_->all_to_all(send, send_bytes, receive, receive_bytes, timeout_seconds);
    const std::size_t out = sum(send_bytes), in = sum(receive_bytes);
    const CurrentDevice current(device_);
    std::byte* const device = staging(out + in);
    check(cudaMemcpyAsync(device, send, out, cudaMemcpyHostToDevice, stream_), "copying messages to the device");
    exchange(messages(device, send_bytes), messages(device + out, receive_bytes), stream_, timeout_seconds);
    check(cudaMemcpyAsync(receive, device + out, in, cudaMemcpyDeviceToHost, stream_), "copying messages to the host");
    check(cudaStreamSynchronize(stream_), "waiting for messages");
  }

  bool takes_device_memory(Device device) const override { return device == Device{DeviceKind::cuda, device_}; }
  void exchange_on_device(std::span<const DeviceMessage> send, std::span<const DeviceMessage> receive, void* stream,
                          double timeout_seconds) override {
    const CurrentDevice current(device_);
    exchange(send, receive, static_cast<cudaStream_t>(stream), timeout_seconds);
  }

 private:
  Transport& host(const char* what) const {
    if (host_) return *host_;
    fail(ErrorKind::unsupported, "rank ", rank_, ": ", what,
         " of memory of the host: this NCCL transport serves CUDA tensors alone (nccl_transport over another transport "
         "serves both)");
  }

  static std::size_t sum(std::span<const std::size_t> bytes) {
    std::size_t total = 0;
    for (const std::size_t count : bytes) total += count;
    return total;
  }

  // Message r lies behind that of rank r - 1.
  static std::vector<DeviceMessage> messages(std::byte* data, std::span<const std::size_t> bytes) {
    std::vector<DeviceMessage> all;
    for (std::size_t r = 0; r < bytes.size(); ++r) {
      if (bytes[r]) all.push_back({.peer = static_cast<int>(r), .data = data, .bytes = bytes[r]});
      data += bytes[r];
    }
    return all;
  }

  std::byte* staging(std::size_t bytes) {
    if (bytes > staging_bytes_) {
      cudaFree(staging_);
      staging_ = nullptr;
      staging_bytes_ = 0;
      check(cudaMalloc(&staging_, bytes), "allocating room for messages");
      staging_bytes_ = bytes;
    }
    return static_cast<std::byte*>(staging_);
  }

  // One group: no message waits for another. The host waits as well, since a rank that has died shows only in time.
  void exchange(std::span<const DeviceMessage> send, std::span<const DeviceMessage> receive, cudaStream_t stream,
                double timeout_seconds) {
    if (!communicator_)
      fail(ErrorKind::device, "rank ", rank_, ": the group has failed before, and is of no further use");
    check_nccl(nccl_.group_start(), "ncclGroupStart");
    nccl::Result posted = nccl::kSuccess;
    for (const DeviceMessage& message : send) {
      if (posted != nccl::kSuccess) break;
      posted = nccl_.send(message.data, message.bytes, nccl::kBytes, message.peer, communicator_, stream);
    }
    for (const DeviceMessage& message : receive) {
      if (posted != nccl::kSuccess) break;
      posted = nccl_.receive(message.data, message.bytes, nccl::kBytes, message.peer, communicator_, stream);
    }
    const nccl::Result ended = nccl_.group_end();
    check_nccl(posted, "posting a message");
    check_nccl(ended, "ncclGroupEnd");
    check(cudaEventRecord(event_, stream), "recording an event");
    wait_for_event(timeout_seconds);
  }

  void wait_for_event(double timeout_seconds) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_seconds);
    for (int tries = 0;; ++tries) {
      const cudaError_t status = cudaEventQuery(event_);
      if (status == cudaSuccess) return;
      if (status != cudaErrorNotReady) give_up(cudaGetErrorString(status));
      nccl::Result error = nccl::kSuccess;
      nccl_.comm_async_error(communicator_, &error);
      if (error != nccl::kSuccess && error != nccl::kInProgress) give_up(describe(error));
      if (std::chrono::steady_clock::now() > deadline) {
        give_up("the messages did not end within " + std::to_string(timeout_seconds) + " seconds");
      }
      if (tries > 1000) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  // Ends NCCL's kernels, which wait for ranks that may be gone.
  [[noreturn]] void give_up(const std::string& reason) {
    nccl_.comm_abort(communicator_);
    communicator_ = nullptr;
    fail(ErrorKind::device, "rank ", rank_, ": NCCL: ", reason);
  }

  std::string describe(nccl::Result result) const {
    std::string text = nccl_.error_string(result);
    const char* more = nccl_.last_error ? nccl_.last_error(communicator_) : nullptr;
    if (more && *more) text += std::string(" (") + more + ")";
    return text;
  }

  void check_nccl(nccl::Result result, const char* function) const {
    if (result == nccl::kSuccess) return;
    fail(ErrorKind::device, "rank ", rank_, " of ", size_, " on device ", device_, ": ", function, ": ",
         describe(result));
  }

  const nccl::Library& nccl_;
  Transport* host_;
  int rank_, size_, device_;
  nccl::Communicator communicator_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
  void* staging_ = nullptr;
  std::size_t staging_bytes_ = 0;
};

constexpr double kStartSeconds = 300;

// What rank 0 has, on every rank; its message is empty where it has none.
struct Invitation {
  NcclId id{};
  char absence[512] = "";
};

}  // namespace

std::string nccl_absence() { return nccl::library().absence; }

NcclId make_nccl_id() {
  const nccl::Library& nccl = nccl::require_library("make_nccl_id");
  NcclId id;
  const nccl::Result result = nccl.get_unique_id(&id);
  if (result != nccl::kSuccess) fail(ErrorKind::device, "ncclGetUniqueId: ", nccl.error_string(result));
  return id;
}

std::unique_ptr<Transport> nccl_transport(const NcclId& id, int rank, int size, int device) {
  return std::make_unique<NcclTransport>(nullptr, id, rank, size, device);
}

// Ranks without NCCL say so to all, so that none waits for them.
std::unique_ptr<Transport> nccl_transport(Transport& host, int device) {
  Invitation own;
  std::strncpy(own.absence, nccl_absence().c_str(), sizeof own.absence - 1);
  if (!*own.absence && host.rank() == 0) own.id = make_nccl_id();
  const auto ranks = static_cast<std::size_t>(host.size());
  const std::vector<Invitation> sent(ranks, own);
  std::vector<Invitation> all(ranks);
  const std::vector<std::size_t> bytes(ranks, sizeof own);
  host.all_to_all(sent.data(), bytes, all.data(), bytes, kStartSeconds);
  for (std::size_t r = 0; r < ranks; ++r) {
    if (*all[r].absence) fail(ErrorKind::unsupported, "nccl_transport: rank ", r, ": ", all[r].absence);
  }
  return std::make_unique<NcclTransport>(&host, all[0].id, host.rank(), host.size(), device);
}

}  // namespace rootdk
