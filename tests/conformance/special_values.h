#pragma once

// Special values for the cases of the grid: CaseSpec::edit.

#include "support/attention_case.h"

namespace rootdk::test {

// A few channels and tokens far outside the others, as trained models have them.
void plant_outliers(AttentionCase& f64_case);
void plant_denormals(AttentionCase& f64_case);
void plant_zero_vectors(AttentionCase& f64_case);
// Key 7 is dropped by the mask for every query: its NaN must not show anywhere.
void plant_masked_nan(AttentionCase& f64_case);
// The keys past each length hold NaN and infinity, as uninitialised padding may.
void plant_padding(AttentionCase& f64_case);
// A NaN in one query stays in its row.
void plant_query_nan(AttentionCase& f64_case);
// Causal: the last key and value are seen by the last query alone.
void plant_last_key_nan(AttentionCase& f64_case);
// Every second query and key is so short that its squares are no f32.
void plant_short_vectors(AttentionCase& f64_case);
// A bias of -inf hides key 7, whose value is NaN, from every query.
void plant_nan_under_minus_infinity(AttentionCase& f64_case);
// Biases of -inf act as a mask; row 3 has nothing else.
void plant_minus_infinity(AttentionCase& f64_case);
// Whole rows dropped by the mask: the first, one in the middle, the last.
void drop_rows(AttentionCase& f64_case);
void plant_minus_infinite_sink(AttentionCase& f64_case);

}  // namespace rootdk::test
