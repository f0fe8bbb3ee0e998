#include "models/model_cache.h"

#include <algorithm>

namespace rootdk {

SequenceId ModelCache::open(std::vector<FixedKeys> source) {
  const SequenceId sequence = keys.open();
  sources[sequence] = std::make_shared<const std::vector<FixedKeys>>(std::move(source));
  return sequence;
}

SequenceId ModelCache::fork(SequenceId parent, std::int64_t length) {
  const SequenceId child = keys.fork(parent, length);
  if (const auto source = sources.find(parent); source != sources.end()) sources[child] = source->second;
  return child;
}

void ModelCache::close(SequenceId sequence) {
  keys.close(sequence);
  sources.erase(sequence);
}

std::vector<FixedKeys> ModelCache::source_keys(KvSteps steps, std::size_t layer) const {
  std::vector<FixedKeys> found;
  if (sources.empty()) return found;
  for (const KvStep& step : steps) found.push_back(sources.at(step.sequence)->at(layer));
  return found;
}

void ModelCache::make_room(KvSteps steps) {
  const KvCacheUsage usage = keys.usage();
  const std::int64_t size = keys.config().page_size;
  std::int64_t needed = 0;
  for (const KvStep& step : steps) {
    const std::int64_t length = keys.length(step.sequence);
    needed += (length + step.tokens + size - 1) / size - (length + size - 1) / size;
    if (length % size != 0) ++needed;  // a last page that a fork shares is copied
  }
  if (needed > usage.free_pages) keys.grow(std::max(2 * usage.pages, usage.pages + needed));
}

}  // namespace rootdk
