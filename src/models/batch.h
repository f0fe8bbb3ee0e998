#pragma once

// Many generations at once over one cache: requests join while others are under way, and leave when they end
// (continuous batching). What a request gives does not depend on the others.

#include <cstddef>
#include <deque>
#include <vector>

#include "models/generate.h"

namespace rootdk {

struct BatchOptions {
  std::int64_t max_sequences = 32;    // under way at the same time; further requests wait for their turn
  std::int64_t prompt_tokens = 1024;  // of prompts that join in one step, so that those under way do not wait long
  std::optional<DType> cache_type{};  // not given: the type of the checkpoint
  Executor* executor = nullptr;
};

// One token of one request.
struct BatchToken {
  std::size_t request = 0;
  std::int32_t id = 0;
  bool last = false;  // the request has ended
};

// The model outlives it.
class BatchGenerator {
 public:
  BatchGenerator(const Transformer& model, const BatchOptions& options = {});

  // A request by its number, from 0 on. Of params, the fields about the cache, the draft and the executor are not
  // looked at. Throws where the model cannot run it; the others go on.
  std::size_t add(std::vector<std::int32_t> prompt, const GenerateParams& params);
  // Takes a request out before its end.
  void cancel(std::size_t request);

  // One token for each request under way, in the order in which they came. Nothing: all have ended.
  std::vector<BatchToken> step();
  bool idle() const { return waiting_.empty() && active_.empty(); }

  const Generation& result(std::size_t request) const { return requests_.at(request).continuation.result(); }
  std::int64_t under_way() const { return static_cast<std::int64_t>(active_.size()); }

 private:
  struct Request {
    Continuation continuation;
    std::vector<std::int32_t> source;  // of an encoder-decoder model
    SequenceId sequence = SequenceId::none;
    std::size_t given = 0;  // ids that the model has seen
  };

  void admit();
  void leave(Request& request);

  const Transformer& model_;
  BatchOptions options_;
  Context context_;
  ModelCache cache_;
  std::deque<Request> requests_;  // by number; references stay
  std::deque<std::size_t> waiting_;
  std::vector<std::size_t> active_;
};

}  // namespace rootdk
