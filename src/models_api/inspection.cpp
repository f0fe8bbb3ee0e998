#include "lab/inspect/inspection.h"

#include "c_api/status.h"
#include "lab/inspect/json.h"
#include "lab/inspect/page.h"
#include "models_api/handles.h"
#include "models_api/interruptible.h"

using namespace rootdk;
using namespace rootdk::models_api;
using rootdk::c_api::guarded;

struct rootdk_inspection {
  lab::Inspection inspection;
  std::vector<std::size_t> order = lab::sorted_by_label(inspection);  // of the heads in the JSON
};

namespace {

std::vector<std::int64_t> chosen(const int64_t* numbers, size_t count, const char* name) {
  require(numbers != nullptr || count == 0, "c_api: ", name, " is null, count ", count);
  return {numbers, numbers + count};
}

rootdk_inspect_params default_params() {
  rootdk_inspect_params params{};
  params.struct_size = sizeof params;
  params.map_side = lab::InspectOptions{}.map_side;
  return params;
}

lab::InspectOptions convert_params(const rootdk_inspect_params* params) {
  constexpr std::int64_t kOperandNumbers = 1'500'000;  // for the page: 6 MB
  if (!params) return {.operand_numbers = kOperandNumbers};
  const auto p = read_struct(params, default_params(), "rootdk_inspect_params");
  require(p.map_side >= 1, "inspect: map_side ", p.map_side, " must be at least 1");
  return {.layers = chosen(p.layers, p.layer_count, "layers"),
          .heads = chosen(p.heads, p.head_count, "heads"),
          .map_side = p.map_side,
          .operand_numbers = kOperandNumbers};
}

const rootdk_inspection& given(const rootdk_inspection* inspection) {
  require(inspection != nullptr, "c_api: the inspection is null");
  return *inspection;
}

}  // namespace

void rootdk_inspect_params_init_sized(rootdk_inspect_params* params, size_t struct_size) {
  init_struct(params, struct_size, default_params());
}

#undef rootdk_inspect_params_init
void rootdk_inspect_params_init(rootdk_inspect_params* params) {
  rootdk_inspect_params_init_sized(params, 56);  // the size in version 0.1
}

rootdk_status rootdk_model_inspect(const rootdk_model* model, const int32_t* ids, size_t count,
                                   const rootdk_inspect_params* params, rootdk_inspection** inspection) {
  return guarded([&] {
    rootdk_inspection*& made = result(inspection, "inspection");
    made = nullptr;
    lab::InspectOptions options = convert_params(params);
    InterruptibleExecutor executor(executor_of(params ? params->threads : 0));
    options.executor = &executor;
    made = new rootdk_inspection{lab::inspect(loaded(model), ids_of(ids, count), options)};
  });
}

rootdk_status rootdk_inspection_json(const rootdk_inspection* inspection, const char** json, size_t* json_bytes) {
  return guarded([&] { hand_out(lab::inspection_json({&given(inspection).inspection, 1}), json, json_bytes); });
}

rootdk_status rootdk_inspection_map(const rootdk_inspection* inspection, size_t head, const float** values,
                                    int64_t* rows, int64_t* columns) {
  return guarded([&] {
    const std::vector<std::size_t>& order = given(inspection).order;
    require(head < order.size(), "inspection_map: there is no head ", head, "; there are ", order.size());
    const lab::HeadProfile& profile = inspection->inspection.heads[order[head]];
    result(values, "values") = profile.map.data();
    result(rows, "rows") = profile.map_rows;
    result(columns, "columns") = profile.map_columns;
  });
}

rootdk_status rootdk_inspection_page(const rootdk_inspection* inspection, const char** html, size_t* html_bytes) {
  return guarded([&] { hand_out(lab::inspection_page({&given(inspection).inspection, 1}), html, html_bytes); });
}

void rootdk_inspection_destroy(rootdk_inspection* inspection) { delete inspection; }
