#pragma once

// What a model keeps for sequences that grow token by token. Sequences come and go independently of one another:
// Transformer::open_sequence() begins one, Transformer::extend() gives tokens to any number of them.

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "layers/cached_attention.h"

namespace rootdk {

struct CacheOptions {
  std::optional<DType> dtype{};  // f32, bf16, f16, i8, f8e4m3; not given: the type of the checkpoint's weights
  std::int64_t tokens = 1024;    // room at first, of all sequences together; the cache grows
};

// Of which tokens extend() returns the output.
enum class ExtendOutput : std::int32_t { last_token = 0, all_tokens = 1 };

struct ModelCache {
  KvCache keys;  // of the self-attention of every layer
  // Encoder-decoder models: for each sequence, the keys and values of its source in every layer. Forks share them.
  std::map<SequenceId, std::shared_ptr<const std::vector<FixedKeys>>> sources{};

  SequenceId open(std::vector<FixedKeys> source);
  SequenceId fork(SequenceId parent, std::int64_t length = -1);
  void close(SequenceId sequence);

  // One layer of the sources of the steps' sequences; empty where the model has no encoder.
  std::vector<FixedKeys> source_keys(KvSteps steps, std::size_t layer) const;
  // Grows the cache where the steps need more pages than are free.
  void make_room(KvSteps steps);
};

}  // namespace rootdk
