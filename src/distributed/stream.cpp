#include "distributed/stream.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/check.h"
#include "core/immortal.h"

namespace rootdk::distributed {
namespace {

constexpr std::chrono::microseconds kProgressEvery{100};

std::int64_t row_width_bytes(const ConstTensorView& view) {
  return view.size(3) * static_cast<std::int64_t>(size_of(view.dtype));
}

// Bytes of `rows` rows of a tensor, with what is left free so that the next tensor is aligned.
std::int64_t aligned_bytes(const ConstTensorView& view, std::int64_t rows) {
  constexpr std::int64_t kAlignment = 16;
  const std::int64_t bytes = view.size(0) * view.size(1) * rows * row_width_bytes(view);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// rows of [batch, heads, rows, width] from one tensor into another.
void copy_rows(const ConstTensorView& from, std::byte* to, std::int64_t to_rows, std::int64_t to_first) {
  const auto element = static_cast<std::int64_t>(size_of(from.dtype)), width = row_width_bytes(from);
  for (std::int64_t b = 0; b < from.size(0); ++b) {
    for (std::int64_t h = 0; h < from.size(1); ++h) {
      std::byte* out = to + ((b * from.size(1) + h) * to_rows + to_first) * width;
      for (std::int64_t i = 0; i < from.size(2); ++i, out += width) {
        const std::int64_t at = b * from.stride(0) + h * from.stride(1) + i * from.stride(2);
        std::memcpy(out, static_cast<const std::byte*>(from.data) + at * element, static_cast<std::size_t>(width));
      }
    }
  }
}

struct Stopped {};

// Memory that a transfer may still write to after a failure. It stays until the process ends.
void keep_for_ever(std::vector<std::unique_ptr<std::byte[]>> memory) {
  struct Kept {
    std::mutex mutex;
    std::vector<std::unique_ptr<std::byte[]>> memory;
  };
  static Kept& kept = *new Kept;
  const std::lock_guard lock(kept.mutex);
  for (auto& one : memory) kept.memory.push_back(std::move(one));
}

}  // namespace

Stream::Stream(Transport& transport, std::vector<StreamItem> items, std::vector<ConstTensorView> tensors,
               std::int64_t capacity, double timeout_seconds)
    : transport_(transport),
      items_(std::move(items)),
      tensors_(std::move(tensors)),
      capacity_(static_cast<std::size_t>(capacity)),
      timeout_seconds_(timeout_seconds) {
  make_hops();
}

Stream::~Stream() {
  std::vector<std::unique_ptr<std::byte[]>> open;
  for (Hop& hop : hops_) {
    if ((hop.receive || hop.send) && hop.memory.data) open.push_back(std::move(hop.memory.data));
  }
  if (!open.empty()) keep_for_ever(std::move(open));
}

void Stream::make_hops() {
  const int here = transport_.rank();
  arrival_of_item_.assign(items_.size(), -1);
  to_send_.resize(static_cast<std::size_t>(transport_.size()));
  for (std::size_t i = 0; i < items_.size(); ++i) {
    for (const StreamPart& part : items_[i].parts) {
      const auto at = std::find(part.route.begin(), part.route.end(), here);
      const bool starts = part.owner == here && !part.route.empty();
      if (!starts && at == part.route.end()) continue;
      Hop hop{.part = &part};
      if (starts) {
        hop.to = part.route.front();
      } else {
        hop.from = at == part.route.begin() ? part.owner : *(at - 1);
        hop.to = at + 1 == part.route.end() ? -1 : *(at + 1);
      }
      if (arrival_of_item_[i] < 0) {
        arrival_of_item_[i] = static_cast<std::ptrdiff_t>(arrivals_.size());
        arrivals_.push_back({.item = i, .consumed = !items_[i].needed_here});
      }
      hop.arrival = static_cast<std::size_t>(arrival_of_item_[i]);
      Arrival& arrival = arrivals_[hop.arrival];
      arrival.hops.push_back(hops_.size());
      arrival.missing += hop.from >= 0;
      (hop.from >= 0 ? receives_ : starts_).push_back(hops_.size());
      if (hop.to >= 0) to_send_[static_cast<std::size_t>(hop.to)].push_back(hops_.size());
      hops_.push_back(std::move(hop));
    }
  }
  std::size_t numbers[2] = {};
  for (Arrival& arrival : arrivals_) {
    arrival.comes = arrival.missing > 0;
    arrival.number = numbers[arrival.comes]++;
  }
}

std::size_t Stream::bytes_of(std::int64_t rows) const {
  std::int64_t bytes = 0;
  for (const ConstTensorView& view : tensors_) bytes += aligned_bytes(view, rows);
  return static_cast<std::size_t>(bytes);
}

Stream::Memory Stream::take(std::size_t bytes) {
  Memory memory{std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
  const std::lock_guard lock(mutex_);
  bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, bytes_);
  return memory;
}

void Stream::give_back(Memory& memory) {
  if (!memory.data) return;
  memory.data.reset();
  const std::lock_guard lock(mutex_);
  bytes_ -= memory.bytes;
}

std::vector<ConstTensorView> Stream::local_views(const StreamPart& part) const {
  std::vector<ConstTensorView> views;
  for (const ConstTensorView& view : tensors_) views.push_back(view.slice(2, part.local, part.local + part.rows));
  return views;
}

// The tensors of `rows` rows, one after another in contiguous memory.
std::vector<ConstTensorView> Stream::views_of(const std::byte* data, std::int64_t rows) const {
  std::vector<ConstTensorView> views;
  for (const ConstTensorView& tensor : tensors_) {
    const std::int64_t shape[] = {tensor.size(0), tensor.size(1), rows, tensor.size(3)};
    views.emplace_back(static_cast<const void*>(data), tensor.dtype, std::span<const std::int64_t>(shape));
    data += aligned_bytes(tensor, rows);
  }
  return views;
}

void Stream::place(const StreamPart& part, const std::vector<ConstTensorView>& from, std::byte* item,
                   std::int64_t item_rows) const {
  for (const ConstTensorView& view : from) {
    copy_rows(view, item, item_rows, part.offset);
    item += aligned_bytes(view, item_rows);
  }
}

void Stream::pack(const StreamPart& part, std::byte* to) const {
  StreamPart alone = part;
  alone.offset = 0;
  place(alone, local_views(part), to, part.rows);
}

// --- the thread that transfers ------------------------------------------------------------------------------------

// Receives are posted in order of the hops, and so are the sends to each rank: messages of a pair of ranks meet in the
// order in which both see them. A send does not wait for what comes the other way, so that links are busy in both
// directions.
void Stream::issue(std::size_t h) {
  Hop& hop = hops_[h];
  hop.memory = take(bytes_of(hop.part->rows));
  if (hop.from >= 0) {
    hop.receive = transport_.post_receive(hop.from, hop.memory.data.get(), hop.memory.bytes);
  } else {
    pack(*hop.part, hop.memory.data.get());
    hop.here = true;
    send_to(hop.to);
  }
}

void Stream::send_to(int rank) {
  if (rank < 0) return;
  auto& waiting = to_send_[static_cast<std::size_t>(rank)];
  while (!waiting.empty() && hops_[waiting.front()].here) {
    Hop& hop = hops_[waiting.front()];
    hop.send = transport_.post_send(rank, hop.memory.data.get(), hop.memory.bytes);
    waiting.pop_front();
  }
}

void Stream::finish(Hop& hop) {
  if (hop.from < 0) return;
  transport_.wait(hop.receive, timeout_seconds_);
  hop.receive = 0;
  hop.here = true;
  send_to(hop.to);
  const std::lock_guard lock(mutex_);
  --arrivals_[hop.arrival].missing;
  changed_.notify_all();
}

bool Stream::is_consumed(std::size_t arrival) {
  const std::lock_guard lock(mutex_);
  return arrivals_[arrival].consumed;
}

void Stream::check_stopped() {
  const std::lock_guard lock(mutex_);
  if (stopped_) throw Stopped();
}

// The thread shares its core with those who compute: it wakes up only where the transport needs it.
void Stream::wait_consumed(std::size_t arrival) {
  const auto is_over = [&] { return arrivals_[arrival].consumed || stopped_; };
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kProgressEvery, is_over)) {
    lock.unlock();
    const bool again = transport_.progress();
    lock.lock();
    if (!again) changed_.wait(lock, is_over);
  }
  if (stopped_) throw Stopped();
}

bool Stream::has_room(const Arrival& arrival) const { return arrival.number < released_[arrival.comes] + capacity_; }

void Stream::release(std::size_t arrival) {
  ++released_[arrivals_[arrival].comes];
  for (const std::size_t h : arrivals_[arrival].hops) {
    if (hops_[h].send) transport_.wait(hops_[h].send, timeout_seconds_);
    hops_[h].send = 0;
    give_back(hops_[h].memory);
  }
}

// Posts what there is room for, and says whether more is left. Receives come first: transports announce them to the
// sender, on the link that the sends are about to fill.
bool Stream::issue_all() {
  bool more = false;
  for (const bool receives : {true, false}) {
    const std::vector<std::size_t>& hops = receives ? receives_ : starts_;
    std::size_t& issued = receives ? receives_issued_ : starts_issued_;
    while (issued < hops.size() && has_room(arrivals_[hops_[hops[issued]].arrival])) issue(hops[issued++]);
    more |= issued < hops.size();
  }
  return more;
}

// Whether all parts of an item are there, or on their way from here.
bool Stream::has_passed(const Arrival& arrival) const {
  return std::all_of(arrival.hops.begin(), arrival.hops.end(), [&](std::size_t h) { return hops_[h].here; });
}

void Stream::transfer_all() {
  std::size_t finished = 0, released = 0;  // receives; arrivals
  bool more = true;
  while (finished < receives_.size() || more) {
    check_stopped();
    more = issue_all();
    // Others may wait for what starts here before they send what comes later.
    const std::size_t next_start = starts_issued_ < starts_.size() ? starts_[starts_issued_] : hops_.size();
    if (finished < receives_issued_ && receives_[finished] < next_start) {
      finish(hops_[receives_[finished++]]);
    } else if (more) {
      wait_consumed(released);
      release(released++);
    }
    while (more && released < arrivals_.size() && has_passed(arrivals_[released]) && is_consumed(released)) {
      release(released++);
    }
  }
  for (; released < arrivals_.size(); ++released) {
    wait_consumed(released);
    release(released);
  }
}

void Stream::transfer() {
  try {
    transfer_all();
  } catch (const Stopped&) {
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

// --- the caller's thread ------------------------------------------------------------------------------------------

void Stream::use_item(std::size_t i, const Use& use) {
  const StreamItem& item = items_[i];
  Arrival* arrival = arrival_of_item_[i] < 0 ? nullptr : &arrivals_[static_cast<std::size_t>(arrival_of_item_[i])];
  if (arrival) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrival->missing == 0 || failure_; });
    if (arrival->missing) std::rethrow_exception(failure_);
  }
  const int here = transport_.rank();
  auto memory_of = [&](const StreamPart& part) -> const std::byte* {
    for (const std::size_t h : arrival->hops) {
      if (hops_[h].part == &part) return hops_[h].memory.data.get();
    }
    fail(ErrorKind::internal, "stream: a part did not arrive");
  };
  auto views = [&](const StreamPart& part) {
    return part.owner == here ? local_views(part) : views_of(memory_of(part), part.rows);
  };
  if (item.parts.size() == 1) {
    use(item.run, views(item.parts[0]));
  } else {
    Memory whole = take(bytes_of(item.run.rows()));
    for (const StreamPart& part : item.parts) place(part, views(part), whole.data.get(), item.run.rows());
    use(item.run, views_of(whole.data.get(), item.run.rows()));
    give_back(whole);
  }
  if (!arrival) return;
  const std::lock_guard lock(mutex_);
  arrival->consumed = true;
  changed_.notify_all();
}

void Stream::run(const Use& use) {
  std::thread thread;
  if (!hops_.empty()) thread = std::thread([this] { transfer(); });
  try {
    for (std::size_t i = 0; i < items_.size(); ++i) {
      if (items_[i].needed_here) use_item(i, use);
    }
  } catch (...) {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
      changed_.notify_all();
    }
    if (thread.joinable()) thread.join();
    throw;
  }
  if (thread.joinable()) thread.join();
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace rootdk::distributed
