#include "models/beam.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"

namespace rootdk {
namespace {

struct Beam {
  SequenceId sequence = SequenceId::none;
  std::vector<std::int32_t> ids{};
  double log_probability = 0;
};

// A beam and a token behind it.
struct Candidate {
  std::size_t beam = 0;
  std::int32_t id = 0;
  double log_probability = 0;
};

bool likelier(const Candidate& a, const Candidate& b) {
  if (a.log_probability != b.log_probability) return a.log_probability > b.log_probability;
  return std::pair(a.beam, a.id) < std::pair(b.beam, b.id);
}

class BeamSearch {
 public:
  BeamSearch(const Transformer& model, const std::vector<std::int32_t>& prompt, const BeamParams& params)
      : model_(model),
        params_(params),
        start_(model, prompt, {.max_new = params.max_new}),
        context_{.executor = params.executor},
        cache_(model.make_cache({.dtype = params.cache_type})) {
    require(params.beams >= 1 && params.beams <= 1024, "beam search: ", params.beams, " beams are not in 1 to 1024");
    require(std::isfinite(params.length_penalty), "beam search: length_penalty ", params.length_penalty,
            " must be finite");
    const TransformerConfig& config = model.config();
    const std::int64_t longest = static_cast<std::int64_t>(start_.ids().size()) + start_.limit();
    require(!config.rope.dynamic || longest <= config.rope.max_position,
            "beam search: dynamic RoPE rotates every key anew past ", config.rope.max_position,
            " tokens, so that a cache does not serve ", longest);
    beams_.push_back(
        {.sequence = model.open_sequence(context_, cache_, config.encoder ? prompt : Ids()), .ids = start_.ids()});
  }

  std::vector<BeamResult> run() {
    for (std::int64_t length = 1; length <= start_.limit() && !beams_.empty(); ++length) {
      keep(best(length));
      if (settled(length)) break;
    }
    for (const Beam& beam : beams_) finish(beam.ids, beam.log_probability);
    std::ranges::stable_sort(done_, std::ranges::greater(), &BeamResult::score);
    if (static_cast<std::int64_t>(done_.size()) > params_.beams) done_.resize(static_cast<std::size_t>(params_.beams));
    return std::move(done_);
  }

 private:
  using Ids = std::vector<std::int32_t>;

  // The likeliest tokens behind all beams: twice as many as there are beams, since half of them may end a text.
  std::vector<Candidate> best(std::int64_t length) {
    std::vector<KvStep> steps;
    Ids ids;
    for (const Beam& beam : beams_) {
      const auto seen = static_cast<std::ptrdiff_t>(cache_.keys.length(beam.sequence));
      ids.insert(ids.end(), beam.ids.begin() + seen, beam.ids.end());
      steps.push_back({.sequence = beam.sequence, .tokens = static_cast<std::int64_t>(beam.ids.size()) - seen});
    }
    const Value logits = model_.extend(context_, cache_, ids, steps);
    const std::int64_t width = logits->width(), forced = forced_token(length);
    std::vector<Candidate> all;
    for (std::size_t b = 0; b < beams_.size(); ++b) {
      const float* row = std::as_const(*logits).data() + static_cast<std::int64_t>(b) * width;
      const double largest = *std::max_element(row, row + width);
      require(std::isfinite(largest), "beam search: the largest logit is ", largest,
              "; the weights hold NaN or numbers too large for f32");
      double sum = 0;
      for (std::int64_t i = 0; i < width; ++i) sum += std::exp(row[i] - largest);
      const double base = beams_[b].log_probability - largest - std::log(sum);
      for (std::int64_t i = 0; i < width; ++i) {
        if (forced >= 0 && i != forced) continue;
        all.push_back({.beam = b, .id = static_cast<std::int32_t>(i), .log_probability = base + row[i]});
      }
    }
    const auto count = std::min<std::ptrdiff_t>(2 * params_.beams, static_cast<std::ptrdiff_t>(all.size()));
    std::partial_sort(all.begin(), all.begin() + count, all.end(), likelier);
    all.resize(static_cast<std::size_t>(count));
    return all;
  }

  std::int64_t forced_token(std::int64_t length) const {
    return length == params_.max_new ? model_.config().forced_end : -1;
  }

  bool ends(std::int32_t id) const {
    const std::vector<std::int32_t>& end = model_.config().end_tokens;
    return params_.stop_at_end && std::ranges::find(end, id) != end.end();
  }

  // Candidates become beams, or results where they end.
  void keep(const std::vector<Candidate>& candidates) {
    std::vector<Beam> next;
    for (std::size_t rank = 0; rank < candidates.size(); ++rank) {
      const Candidate& candidate = candidates[rank];
      Ids ids = beams_[candidate.beam].ids;
      ids.push_back(candidate.id);
      if (ends(candidate.id)) {
        if (static_cast<std::int64_t>(rank) < params_.beams) finish(std::move(ids), candidate.log_probability);
      } else if (static_cast<std::int64_t>(next.size()) < params_.beams) {
        next.push_back({.sequence = cache_.fork(beams_[candidate.beam].sequence),
                        .ids = std::move(ids),
                        .log_probability = candidate.log_probability});
      }
    }
    for (const Beam& beam : beams_) cache_.close(beam.sequence);
    beams_ = std::move(next);
  }

  double score(double log_probability, std::int64_t length) const {
    return log_probability / std::pow(static_cast<double>(length), params_.length_penalty);
  }

  void finish(Ids ids, double log_probability) {
    const auto length = static_cast<std::int64_t>(ids.size() - start_.ids().size());
    if (length == 0) return;
    done_.push_back({.ids = std::move(ids),
                     .new_tokens = length,
                     .log_probability = log_probability,
                     .score = score(log_probability, length)});
  }

  // Whether enough texts have ended, and no beam could still be better than the worst of them: its probability only
  // falls, so that it is judged at the length that serves it best.
  bool settled(std::int64_t length) const {
    if (static_cast<std::int64_t>(done_.size()) < params_.beams || beams_.empty()) return false;
    std::vector<double> scores;
    for (const BeamResult& result : done_) scores.push_back(result.score);
    std::ranges::sort(scores, std::ranges::greater());
    const std::int64_t longest = params_.length_penalty > 0 ? start_.limit() : length;
    return scores[static_cast<std::size_t>(params_.beams) - 1] >= score(beams_.front().log_probability, longest);
  }

  const Transformer& model_;
  BeamParams params_;
  Continuation start_;
  Context context_;
  ModelCache cache_;
  std::vector<Beam> beams_;
  std::vector<BeamResult> done_;
};

}  // namespace

std::vector<BeamResult> beam_search(const Transformer& model, const std::vector<std::int32_t>& prompt,
                                    const BeamParams& params) {
  return BeamSearch(model, prompt, params).run();
}

}  // namespace rootdk
