#pragma once

// Verbs and options of the command line, over CLI11. Only arguments.cpp includes CLI11, whose header alone takes longer
// to compile than any verb.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace rootdk::tools {

// Every setter returns the option itself, so that calls can be chained.
class Option {
 public:
  explicit Option(CLI::Option& option) : option_(option) {}

  Option* required();
  Option* type_name(const std::string& name);  // what the help shows for the value
  Option* show_default();                      // the help shows the value that the variable has now
  Option* group(const std::string& name);
  Option* excludes(const Option* other);
  Option* needs(const Option* other);
  Option* one_of(const std::vector<std::string>& choices);  // the help shows them: a|b|c
  Option* between(std::int64_t lowest, std::int64_t highest);
  Option* check(const std::function<std::string(const std::string&)>& error_of);  // "": the value is accepted

  std::size_t count() const;  // how often it was given
  std::string name() const;

 private:
  CLI::Option& option_;
};

// A verb, or the program. Variables given to add_option and add_flag must outlive the parsing.
class Command {
 public:
  explicit Command(CLI::App& app) : app_(app) {}

  Command* add_subcommand(const std::string& name, const std::string& help);
  void require_subcommand();
  void alias(const std::string& name);  // another name for it
  void footer(const std::string& text);
  void callback(const std::function<void()>& run);

  // T: std::string, std::vector<std::string>, int, std::int64_t, std::uint64_t, float, double, or std::optional of
  // std::int64_t or double.
  template <class T>
  Option* add_option(const std::string& name, T& value, const std::string& help);
  Option* add_flag(const std::string& name, bool& value, const std::string& help);
  // read() gets the text of the value and answers what is wrong with it; "": nothing.
  Option* add_text(const std::string& name, const std::function<std::string(const std::string&)>& read,
                   const std::string& help);
  // A value by its name.
  template <class Value>
  Option* add_choice(const std::string& name, Value& value, const std::vector<std::pair<std::string, Value>>& choices,
                     const std::string& help) {
    std::vector<std::string> names;
    names.reserve(choices.size());
    for (const auto& [choice, meaning] : choices) names.push_back(choice);
    const auto read = [&value, choices](const std::string& text) {
      for (const auto& [choice, meaning] : choices) {
        if (choice == text) value = meaning;
      }
      return std::string();
    };
    return add_text(name, read, help)->one_of(names);
  }

  std::vector<const Option*> options() const;  // in the order in which they were added

 private:
  Option* keep(CLI::Option* option);

  CLI::App& app_;
  std::vector<std::unique_ptr<Option>> options_;
  std::vector<std::unique_ptr<Command>> subcommands_;
};

class Program {
 public:
  Program(const std::string& name, const std::string& description, const std::string& version);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  Command& command() { return *command_; }

  // Runs the verb that the arguments name; what it throws is passed on. An exit status where there is nothing to run:
  // help was asked for, or the arguments are wrong, which is then said on standard error.
  std::optional<int> run(int argc, char** argv);

 private:
  std::unique_ptr<CLI::App> app_;
  std::unique_ptr<Command> command_;
};

}  // namespace rootdk::tools
