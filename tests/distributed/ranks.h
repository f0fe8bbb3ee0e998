#pragma once

// An attention problem cut over ranks: its rows on each rank, the call on each, and the results put together again.

#include <functional>

#include "rootdk/distributed.h"
#include "support/attention_case.h"

namespace rootdk::test {

// Which have no weights: their rows lie on one rank.
inline bool exchanges_heads(Scheme scheme) { return scheme == Scheme::heads || scheme == Scheme::both; }

// The rows of a share of one dimension, copied in the order in which the rank holds them.
Tensor rows_of_share(const ConstTensorView& view, int dimension, const std::vector<RowRange>& share);
// The way back: into the rows of the whole.
void put_rows(const ConstTensorView& part, int dimension, const std::vector<RowRange>& share, const TensorView& whole);

// What one rank does in a forward and a backward call. Results have the names of attention.h and this rank's rows, in
// the types that the library wrote.
Results run_rank(Transport& transport, const AttentionCase& problem, const DistributedParams& distributed,
                 bool backward);
// What a rank has of the results of the whole.
Results results_of_rank(const Results& whole, const AttentionCase& problem, const DistributedParams& distributed,
                        int rank);
// The rows of all ranks in the whole.
Results join(const std::vector<Results>& ranks, const DistributedParams& distributed);

// Every rank as a thread.
Results run_threads(int ranks, const AttentionCase& problem, const DistributedParams& distributed, bool backward);
// Runs body(transport) on a thread for each rank; the messages of what they threw, "" where nothing.
std::vector<std::string> errors_of_ranks(int ranks, const std::function<void(Transport&)>& body);

// Where two results differ in a bit; "" where they do not.
std::string first_difference(const Results& expected, const Results& actual);

}  // namespace rootdk::test
