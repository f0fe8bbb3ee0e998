#pragma once

// Before a call the ranks tell each other what they were asked for, and what is wrong with it. Each compares all with
// its own, so that all end with an error, or none.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "distributed/whole.h"

namespace rootdk::distributed {

// How a value reads in a message.
enum class EntryKind : std::int64_t { whole, real, dtype, scheme, contents };

// Named values that must be the same on every rank.
class Request {
 public:
  void add(std::string_view name, std::int64_t value);
  void add(std::string_view name, double value);
  void add(std::string_view name, DType dtype);
  void add(std::string_view name, Scheme scheme);
  void add(std::string_view name, const Shares& shares);  // by a hash
  void add(std::string_view name,
           const ConstTensorView& values);  // a hash of the elements; on a GPU their number; not given: 0

  struct Entry {
    std::string name{};
    std::int64_t bits = 0;
    EntryKind kind = EntryKind::whole;
  };
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  void add_contents(std::string_view name, std::int64_t hash);

  std::vector<Entry> entries_;
};

// Runs check(), which adds to the request and may throw; then exchanges and compares. Throws what this rank, or else
// the first of the others, found wrong.
void agree(std::string_view operation, Transport& transport, double timeout_seconds,
           const std::function<void(Request&)>& check);

// The entries that describe the whole call.
void add_whole(Request& request, const Whole& whole, const DistributedParams& distributed,
               const AttentionParams& params, DType dtype);

}  // namespace rootdk::distributed
