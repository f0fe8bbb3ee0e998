#include "tools/arguments.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>

namespace rootdk::tools {
namespace {

// CLI11 would take a number beyond 64 bits as the largest.
std::string refuse_overflow(const std::string& entry) {
  std::int64_t number = 0;
  const auto [rest, error] = std::from_chars(entry.data(), entry.data() + entry.size(), number);
  return error == std::errc::result_out_of_range ? entry + " does not fit into 64 bits" : "";
}

}  // namespace

Option* Option::required() {
  option_.required();
  return this;
}

Option* Option::type_name(const std::string& name) {
  option_.type_name(name);
  return this;
}

Option* Option::show_default() {
  option_.capture_default_str();
  return this;
}

Option* Option::group(const std::string& name) {
  option_.group(name);
  return this;
}

Option* Option::excludes(const Option* other) {
  option_.excludes(&other->option_);
  return this;
}

Option* Option::needs(const Option* other) {
  option_.needs(&other->option_);
  return this;
}

Option* Option::one_of(const std::vector<std::string>& choices) {
  std::string shown;
  for (const std::string& choice : choices) shown += (shown.empty() ? "" : "|") + choice;
  option_.check(CLI::IsMember(choices).description(""))->type_name(shown);
  return this;
}

Option* Option::between(std::int64_t lowest, std::int64_t highest) {
  option_.check(CLI::Range(lowest, highest).description(""));
  return this;
}

Option* Option::check(const std::function<std::string(const std::string&)>& error_of) {
  option_.check(error_of);
  return this;
}

std::size_t Option::count() const { return option_.count(); }

std::string Option::name() const { return option_.get_name(); }

Command* Command::add_subcommand(const std::string& name, const std::string& help) {
  subcommands_.push_back(std::make_unique<Command>(*app_.add_subcommand(name, help)));
  return subcommands_.back().get();
}

void Command::require_subcommand() { app_.require_subcommand(1); }

void Command::alias(const std::string& name) { app_.alias(name); }

void Command::footer(const std::string& text) { app_.footer(text); }

void Command::callback(const std::function<void()>& run) { app_.callback(run); }

template <class T>
Option* Command::add_option(const std::string& name, T& value, const std::string& help) {
  CLI::Option* option = app_.add_option(name, value, help);
  if constexpr (std::is_same_v<T, std::int64_t> || std::is_same_v<T, std::optional<std::int64_t>>) {
    option->check(refuse_overflow);
  }
  return keep(option);
}

template Option* Command::add_option(const std::string&, std::string&, const std::string&);
template Option* Command::add_option(const std::string&, std::vector<std::string>&, const std::string&);
template Option* Command::add_option(const std::string&, int&, const std::string&);
template Option* Command::add_option(const std::string&, std::int64_t&, const std::string&);
template Option* Command::add_option(const std::string&, std::uint64_t&, const std::string&);
template Option* Command::add_option(const std::string&, float&, const std::string&);
template Option* Command::add_option(const std::string&, double&, const std::string&);
template Option* Command::add_option(const std::string&, std::optional<std::int64_t>&, const std::string&);
template Option* Command::add_option(const std::string&, std::optional<double>&, const std::string&);

Option* Command::add_flag(const std::string& name, bool& value, const std::string& help) {
  return keep(app_.add_flag(name, value, help));
}

Option* Command::add_text(const std::string& name, const std::function<std::string(const std::string&)>& read,
                          const std::string& help) {
  const auto take = [name, read](const std::string& text) {
    const std::string error = read(text);
    if (!error.empty()) throw CLI::ValidationError(name, error);
  };
  return keep(app_.add_option_function<std::string>(name, take, help));
}

std::vector<const Option*> Command::options() const {
  std::vector<const Option*> all;
  all.reserve(options_.size());
  for (const std::unique_ptr<Option>& option : options_) all.push_back(option.get());
  return all;
}

Option* Command::keep(CLI::Option* option) {
  options_.push_back(std::make_unique<Option>(*option));
  return options_.back().get();
}

Program::Program(const std::string& name, const std::string& description, const std::string& version)
    : app_(std::make_unique<CLI::App>(description, name)), command_(std::make_unique<Command>(*app_)) {
  app_->set_version_flag("--version", version);
  app_->require_subcommand(1);
}

Program::~Program() = default;

std::optional<int> Program::run(int argc, char** argv) {
  constexpr int kUsage = 2;
  try {
    app_->parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    // Help and version requests arrive as exceptions too, with exit code 0.
    if (error.get_exit_code() == 0) return app_->exit(error);
    // What was not understood says more than what is missing because of it.
    const std::vector<std::string> unknown = app_->remaining(/*recurse=*/true);
    const std::string message = unknown.empty() ? error.what() : "there is no '" + unknown.front() + "'";
    const CLI::App* verb = app_->get_subcommands().empty() ? app_.get() : app_->get_subcommands().front();
    const std::string name = verb == app_.get() ? app_->get_name() : app_->get_name() + " " + verb->get_name();
    std::fflush(stdout);
    std::fprintf(stderr, "%s: %s\ntry '%s --help'\n", app_->get_name().c_str(), message.c_str(), name.c_str());
    return kUsage;
  }
}

}  // namespace rootdk::tools
