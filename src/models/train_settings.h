#pragma once

#include <string>
#include <string_view>

#include "models/train.h"

namespace rootdk {

// Throws rootdk::Error that names the setting and its value.
void check_settings(const TrainSettings& settings);

std::string settings_json(const TrainSettings& settings);
TrainSettings parse_settings(std::string_view json_text, const std::string& where);

ScheduleKind schedule_named(const std::string& name);

}  // namespace rootdk
